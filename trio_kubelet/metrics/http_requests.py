"""Counts requests to the node. Labels are bounded: whatever clients write, they are these words."""

import trio

from trio_kubelet.metrics.definitions import Counts
from trio_kubelet.server.messages import Handler, Request, Response

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STREAMS = frozenset({"exec", "attach", "portForward"})
_LONG = _STREAMS | {"debug"}
_PATHS = _LONG | {
    *("checkpoint", "configz", "containerLogs", "flagz", "healthz", "logs", "metrics", "pods"),
    *("run", "runningpods", "stats", "statusz"),
}
_METRICS = frozenset({"cadvisor", "probes", "resource"})
OTHER = "other"


def counted(handler: Handler, counts: Counts, server_type: str) -> Handler:
    """A handler that counts what it passes on: at its begin, at its end, and how long it took."""

    async def handle(request: Request) -> Response | None:
        path = path_label(request.path)
        method = request.method if request.method in _METHODS else OTHER
        labels = (str(path in _LONG).lower(), method, path, server_type)
        if path in _STREAMS and "websocket" in request.headers.first("upgrade").lower():
            counts.websockets.labels(path.lower()).inc()
        counts.http_requests.labels(*labels).inc()
        inflight = counts.http_inflight.labels(*labels)
        inflight.inc()
        began_at = trio.current_time()
        try:
            return await handler(request)
        finally:
            inflight.dec()
            counts.http_seconds.labels(*labels).observe(trio.current_time() - began_at)

    return handle


def path_label(path: str) -> str:
    """The first part of a path if it is one of ours; both of `/metrics/cadvisor` and the like."""
    first, _, rest = path.lstrip("/").partition("/")
    if first not in _PATHS:
        return OTHER
    if first == "metrics" and rest.rstrip("/") in _METRICS:
        return f"metrics/{rest.rstrip('/')}"
    return first
