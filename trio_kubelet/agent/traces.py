"""Traces of the agent's work, where `tracing` is configured."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import httpx
import structlog
import trio
from attrs import frozen

from trio_kubelet import __version__
from trio_kubelet.config.settings import Settings
from trio_kubelet.config.trace_endpoint import trace_endpoint
from trio_kubelet.rpc import Channel, HostAndPort, Transport
from trio_kubelet.server import Route
from trio_kubelet.server.traced import traced
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tracing import SpanQueue, TracedRequests, TracedTransport, Tracer

log = structlog.get_logger("tracing")

MOST_ANSWER_BYTES = 64 << 10
END_SECONDS = 2.0
"""The time for what is left to be sent when the agent ends."""
SERVICE = "kubelet"
"""The name by which the spans of a node are found, whoever is its kubelet."""


@frozen(kw_only=True)
class Traces:
    """The tracer, and the queue of what it has made, to be sent to the collector at `endpoint`."""

    endpoint: str | HostAndPort
    node_name: str
    queue: SpanQueue
    tracer: Tracer

    @asynccontextmanager
    async def sent(self) -> AsyncIterator[None]:
        """Send spans while the body runs, inside `open_rpc_loop()`, and what is left after it.

        What is done while the body is cancelled is sent, too.
        """
        async with trio.open_nursery() as nursery:
            sending = trio.CancelScope(shield=True)
            nursery.start_soon(self._send, sending)
            try:
                yield
            finally:
                self.queue.close()
                sending.deadline = trio.current_time() + END_SECONDS

    async def _send(self, scope: trio.CancelScope) -> None:
        with scope:
            await self._run()
        if scope.cancelled_caught:
            log.warning("last traces were not sent in time", seconds=END_SECONDS)

    async def _run(self) -> None:
        # Here, because other nodes need none of it.
        from trio_kubelet.tracing.exporter import TraceExporter

        about = {
            "service.name": SERVICE,
            "service.version": __version__,
            "host.name": self.node_name,
        }
        await TraceExporter(self.queue, about).run(
            partial(Channel, self.endpoint, max_answer_bytes=MOST_ANSWER_BYTES)
        )


def make_traces(settings: Settings, clock: Clock, node_name: str) -> Traces | None:
    """Make what traces need; None where none are to be made."""
    tracing = settings.configuration.tracing
    if tracing is None:
        return None
    found = trace_endpoint(tracing.endpoint)
    endpoint = found if isinstance(found, str) else HostAndPort(*found)
    queue = SpanQueue()
    tracer = Tracer(clock, tracing.sampling_rate_per_million or 0, queue.put)
    return Traces(endpoint=endpoint, node_name=node_name, queue=queue, tracer=tracer)


def traced_transport(transport: Transport, traces: Traces | None) -> Transport:
    """A transport whose calls are spans, if there are traces."""
    return transport if traces is None else TracedTransport(transport, traces.tracer)


def traced_requests(
    transport: httpx.AsyncBaseTransport, traces: Traces | None
) -> httpx.AsyncBaseTransport:
    """A transport whose requests are spans, if there are traces."""
    return transport if traces is None else TracedRequests(transport, traces.tracer)


def traced_routes(routes: Sequence[Route], traces: Traces | None) -> Sequence[Route]:
    """Routes whose requests are spans, if there are traces."""
    return routes if traces is None else [traced(each, traces.tracer) for each in routes]
