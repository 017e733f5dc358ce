"""An HTTP transport that makes each request a span, and tells the server of it."""

import httpx

from trio_kubelet.tracing.tracer import SpanKind, Tracer
from trio_kubelet.tracing.transport import TRACEPARENT

REFUSED_STATUS = 400


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
