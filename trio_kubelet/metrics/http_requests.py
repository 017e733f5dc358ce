"""Counts requests to the node. Labels are bounded: whatever clients write, they are these words."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager

import trio
from attrs import evolve

from trio_kubelet.metrics.definitions import Counts
from trio_kubelet.server.messages import Handler, Request, Response

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_STREAMS = frozenset({"exec", "attach", "portForward"})
_LONG = _STREAMS | {"debug"}
OTHER = "other"


def counted(handler: Handler, counts: Counts, server_type: str, known: frozenset[str]) -> Handler:
    """A handler that counts what it passes on: at its begin, at its end, and how long it took.

    `known` are the labels of the routes; all other paths have one label together.
    A response that streams is over with its last piece, or when its client has gone.
    """

    async def handle(request: Request) -> Response | None:
        path = path_label(request.path, known)
        method = request.method if request.method in _METHODS else OTHER
        labels = (str(path in _LONG).lower(), method, path, server_type)
        if path in _STREAMS and "websocket" in request.headers.first("upgrade").lower():
            counts.websockets.labels(path.lower()).inc()
        counts.http_requests.labels(*labels).inc()
        with ExitStack() as stack:
            stack.enter_context(_going_on(counts, labels))
            response = await handler(request)
            if response is None or isinstance(response.body, bytes):
                return response
            body = _until_over(response.body, stack.pop_all())
            await anext(body)  # From now on the generator ends what is counted.
            return evolve(response, body=body)

    return handle


@contextmanager
def _going_on(counts: Counts, labels: tuple[str, ...]) -> Iterator[None]:
    inflight = counts.http_inflight.labels(*labels)
    inflight.inc()
    began_at = trio.current_time()
    try:
        yield
    finally:
        inflight.dec()
        counts.http_seconds.labels(*labels).observe(trio.current_time() - began_at)


async def _until_over(
    body: AsyncGenerator[bytes, None], counting: AbstractContextManager[object]
) -> AsyncGenerator[bytes, None]:
    """The same pieces, after an empty one."""
    with counting:
        async with aclosing(body):
            yield b""
            async for piece in body:
                yield piece


def path_label(path: str, known: frozenset[str]) -> str:
    """The label of a route that a path begins with: `metrics/cadvisor` goes before `metrics`."""
    first, _, rest = path.lstrip("/").partition("/")
    both = f"{first}/{rest.rstrip('/')}"
    return next((label for label in (both, first) if label in known), OTHER)
