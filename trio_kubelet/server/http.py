"""A small HTTP/1.1 server on trio and h11: enough for health checks and debugging pages.

h11 knows the protocol, this file moves bytes and sets limits: so many connections at once, so
long for a request to arrive. A handler is a coroutine from a question to an answer; what it
raises becomes a 500 and a line in the log, and costs nobody else anything.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import h11
import structlog
import trio
from attrs import field, frozen

log = structlog.get_logger("server")

MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_SECONDS = 30.0
READ_BYTES = 16 * 1024


@frozen(kw_only=True)
class Question:
    """One request: method, path without the query, the query's parameters (the last of a name)."""

    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Answer:
    """One response."""

    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    body: bytes = b""


Handler = Callable[[Question], Awaitable[Answer]]


async def listen_tcp(host: str, port: int) -> Sequence[trio.SocketListener]:
    """Listen on an address; port 0 takes any. Raises OSError."""
    return await trio.open_tcp_listeners(port, host=host)


async def listen_unix(path: Path) -> Sequence[trio.SocketListener]:
    """Listen on a unix socket that only its owner may use. Raises OSError.

    A socket that an earlier agent left behind is replaced.
    """
    await trio.Path(path).unlink(missing_ok=True)
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        await listener.bind(str(path))
        await trio.Path(path).chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return [trio.SocketListener(listener)]


async def serve_http(
    listeners: Sequence[trio.SocketListener],
    handler: Handler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; the listeners are closed then."""
    places = trio.CapacityLimiter(MAX_CONNECTIONS)

    async def converse(stream: trio.SocketStream) -> None:
        async with places, stream:
            try:
                await _converse(stream, handler)
            except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
                return
            except Exception:
                log.exception("connection failed")

    task_status.started()
    await trio.serve_listeners(converse, list(listeners))


async def _converse(stream: trio.SocketStream, handler: Handler) -> None:
    """Answer the requests of one connection until the peer has enough."""
    connection = h11.Connection(our_role=h11.SERVER)
    while True:
        with trio.move_on_after(REQUEST_TIMEOUT_SECONDS) as waiting:
            request = await _next_request(connection, stream)
        if waiting.cancelled_caught or request is None:
            return
        answer = await _answer(handler, request)
        await _send(connection, stream, answer, head_only=request.method == b"HEAD")
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return
        connection.start_next_cycle()


async def _next_request(
    connection: h11.Connection, stream: trio.SocketStream
) -> h11.Request | None:
    """The next request with its body read and dropped; None when the peer has closed."""
    request: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None


async def _answer(handler: Handler, request: h11.Request) -> Answer:
    method = request.method.decode()
    if method not in ("GET", "HEAD"):
        return Answer(status=405, body=b"Method Not Allowed\n")
    target = urlsplit(request.target.decode("ascii", "replace"))
    question = Question(method=method, path=target.path, query=dict(parse_qsl(target.query)))
    try:
        return await handler(question)
    except Exception:
        log.exception("request failed", path=target.path)
        return Answer(status=500, body=b"Internal Server Error\n")


async def _send(
    connection: h11.Connection, stream: trio.SocketStream, answer: Answer, *, head_only: bool
) -> None:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("X-Content-Type-Options", "nosniff"),
    ]
    response = h11.Response(status_code=answer.status, headers=headers)
    data = connection.send(response) or b""
    if not head_only:
        data += connection.send(h11.Data(data=answer.body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(data)
