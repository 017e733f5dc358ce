"""Sends spans to a collector over OTLP, on gRPC without TLS, as the Go kubelet does.

A collector that does not take them costs the spans and nothing else: each batch is tried once.
"""

from collections.abc import Callable, Sequence

import structlog

from trio_kubelet.rpc import Channel, RpcError, encode_ahead
from trio_kubelet.rpc.stubs.opentelemetry.proto.collector.trace import v1 as collector
from trio_kubelet.rpc.stubs.opentelemetry.proto.common import v1 as common
from trio_kubelet.rpc.stubs.opentelemetry.proto.resource import v1 as resource
from trio_kubelet.rpc.stubs.opentelemetry.proto.trace import v1 as otlp
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.tracing.queue import SpanQueue
from trio_kubelet.tracing.tracer import Attributes, Span

log = structlog.get_logger("tracing")

PERIOD_SECONDS = 5.0
EXPORT_SECONDS = 10.0


class TraceExporter:
    """Sends what the queue holds, `about` being the node's attributes."""

    def __init__(self, queue: SpanQueue, about: Attributes) -> None:
        self._queue = queue
        self._about = about
        self._is_away = False
        self._rejects = False

    async def run(self, connect: Callable[[], Channel]) -> None:
        """Send spans until the queue is over; after a failure over another channel (`connect`).

        Cancelled, what has not been sent is lost.
        """
        while not self._queue.is_over:
            channel = connect()
            try:
                await self._export_over(channel)
            finally:
                channel.close()  # A collector that was unplugged would be believed in for long.

    async def _export_over(self, channel: Channel) -> None:
        """Send spans until the queue is over or some were not taken."""
        while not self._queue.is_over:
            if not await self._export(channel, await self._queue.take(PERIOD_SECONDS)):
                return

    async def _export(self, channel: Channel, batch: Sequence[Span]) -> bool:
        """Send spans; False if they were not taken."""
        if not batch:
            return True
        request = await run_in_thread(export_request, batch, self._about)
        try:
            response = await channel.unary(
                collector.TraceServiceStub.export, request, deadline_seconds=EXPORT_SECONDS
            )
        except RpcError as error:
            if not self._is_away:
                log.warning("trace export failed", error=str(error), spans=len(batch))
            self._is_away = True
            self._queue.on_dropped.call(len(batch))
            return False
        if self._is_away:
            log.info("traces are exported again")
        self._is_away = False
        rejected = min(max(0, response.partial_success.rejected_spans), len(batch))
        if rejected:
            if not self._rejects:
                log.warning(
                    "trace collector rejected spans",
                    spans=rejected,
                    error=response.partial_success.error_message,
                )
            self._queue.on_dropped.call(rejected)
        self._rejects = bool(rejected)
        return True


def export_request(batch: Sequence[Span], about: Attributes) -> collector.ExportTraceServiceRequest:
    """The request that sends spans, encoded. For a thread: of many it takes long."""
    request = collector.ExportTraceServiceRequest(
        resource_spans=[
            otlp.ResourceSpans(
                resource=resource.Resource(attributes=_attributes(about)),
                scope_spans=[
                    otlp.ScopeSpans(
                        scope=common.InstrumentationScope(name="trio_kubelet"),
                        spans=[_encoded_span(each) for each in batch],
                    )
                ],
            )
        ]
    )
    encode_ahead(request)
    return request


def _encoded_span(span: Span) -> otlp.Span:
    encoded = otlp.Span(
        trace_id=span.context.trace_id.to_bytes(16, "big"),
        span_id=span.context.span_id.to_bytes(8, "big"),
        name=span.name,
        kind=otlp.SpanSpanKind(span.kind),
        start_time_unix_nano=span.began_at_ns,
        end_time_unix_nano=span.ended_at_ns,
        attributes=_attributes(span.attributes),
    )
    if span.parent_id:
        encoded.parent_span_id = span.parent_id.to_bytes(8, "big")
    if span.error:
        code = otlp.StatusStatusCode(otlp.StatusStatusCode.STATUS_CODE_ERROR)
        encoded.status = otlp.Status(message=_sendable(span.error), code=code)
    return encoded


def _attributes(attributes: Attributes) -> list[common.KeyValue]:
    return [common.KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]


def _value(value: str | int) -> common.AnyValue:
    if isinstance(value, str):
        return common.AnyValue(string_value=_sendable(value))
    return common.AnyValue(int_value=value)


def _sendable(text: str) -> str:
    """A text without lone surrogates, which no message can have."""
    return text.encode(errors="replace").decode()
