"""Spans of the agent's work and their way to a collector (`tracing` of KubeletConfiguration).

`tracer.py` makes spans and knows which is the current one; `transport.py` makes spans of calls
and of requests to the API server, and tells peers whose part they are; `exporter.py` sends what has
ended over OTLP. Where no collector is configured, none of it is made.
"""

from trio_kubelet.tracing.queue import SpanQueue
from trio_kubelet.tracing.tracer import Attributes, Span, SpanKind, Tracer, parse_traceparent
from trio_kubelet.tracing.transport import TracedRequests, TracedTransport

__all__ = [
    "Attributes",
    "Span",
    "SpanKind",
    "SpanQueue",
    "TracedRequests",
    "TracedTransport",
    "Tracer",
    "parse_traceparent",
]
