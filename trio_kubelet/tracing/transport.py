"""Transports of gRPC and HTTP: each call with one answer is a span, and its peer is told of it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import httpx

from trio_kubelet.rpc import RpcError, Transport, call_metadata
from trio_kubelet.rpc.field_cut import FieldCut, Head
from trio_kubelet.rpc.methods import RequestT, ResponseT, StreamStub, UnaryStub, method_of
from trio_kubelet.tracing.tracer import MOST_ATTRIBUTE_CHARACTERS, Span, SpanKind, Tracer

TRACEPARENT = "traceparent"
REFUSED_STATUS = 400


class TracedTransport(Transport):
    """Passes calls on. A stream that lasts is no span: it would end with the agent."""

    def __init__(self, transport: Transport, tracer: Tracer) -> None:
        self._transport = transport
        self._tracer = tracer

    async def unary_raw(
        self,
        method: UnaryStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        cut: FieldCut | None = None,
    ) -> bytes:
        with self._call(method_of(method).path):
            return await self._transport.unary_raw(
                method, request, deadline_seconds=deadline_seconds, cut=cut
            )

    async def gather_raw(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        max_bytes: int,
        deadline_seconds: float | None = None,
    ) -> bytes:
        with self._call(method_of(method).path):
            return await self._transport.gather_raw(
                method, request, max_bytes=max_bytes, deadline_seconds=deadline_seconds
            )

    def stream(
        self,
        method: StreamStub[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline_seconds: float | None = None,
        head: Head | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[ResponseT]]:
        """As `Transport.stream`."""
        return self._transport.stream(method, request, deadline_seconds=deadline_seconds, head=head)

    @contextmanager
    def _call(self, path: str) -> Iterator[Span]:
        """The span of a call, by OpenTelemetry's names for those of gRPC."""
        service, _, name = path.lstrip("/").partition("/")
        attributes: dict[str, Any] = {
            "rpc.system": "grpc",
            "rpc.service": service,
            "rpc.method": name,
        }
        with self._tracer.span(f"{service}/{name}", SpanKind.CLIENT, attributes) as span:
            try:
                with call_metadata({TRACEPARENT: span.context.traceparent}):
                    yield span
            except RpcError as error:
                span.note("rpc.grpc.status_code", int(error.code))
                span.error = str(error)[:MOST_ATTRIBUTE_CHARACTERS]
                raise
            span.note("rpc.grpc.status_code", 0)


class TracedRequests(httpx.AsyncBaseTransport):
    """Passes requests on. A span ends where the response begins: that of a watch may not end."""

    def __init__(self, transport: httpx.AsyncBaseTransport, tracer: Tracer) -> None:
        self._transport = transport
        self._tracer = tracer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As the transport's."""
        url = request.url
        attributes: dict[str, str | int] = {
            "http.request.method": request.method,
            "server.address": url.host,
            "url.path": url.path,
        }
        with self._tracer.span(f"HTTP {request.method}", SpanKind.CLIENT, attributes) as span:
            request.headers[TRACEPARENT] = span.context.traceparent
            response = await self._transport.handle_async_request(request)
            span.note("http.response.status_code", response.status_code)
            if response.status_code >= REFUSED_STATUS:
                span.error = f"status {response.status_code}"
            return response

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()
