"""A small HTTP/1.1 server on trio and h11: enough for health checks and debugging pages.

h11 knows the protocol, this file moves bytes and sets limits. Only so many connections are kept:
when there are more, the one goes whose client has let the server wait longest, so that idle or
slow clients keep nobody from asking after the agent's health. A handler is a coroutine from a
question to an answer; what it raises becomes a 500 and a line in the log, and costs nobody else
anything.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import structlog
import trio
from attrs import field, frozen

log = structlog.get_logger("server")

MAX_CONNECTIONS = 64
MAX_BODY_BYTES = 64 * 1024
CLIENT_TIMEOUT_SECONDS = 30.0
GOODBYE_SECONDS = 1.0
READ_BYTES = 16 * 1024


@frozen(kw_only=True)
class Question:
    """One request: method, path without the query, the query's parameters (the last of a name)."""

    method: str
    path: str
    query: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Answer:
    """One response. `headers` are those beside type and length."""

    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


Handler = Callable[[Question], Awaitable[Answer]]


async def serve_http(
    listeners: Sequence[trio.SocketListener],
    handler: Handler,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; connections and listeners are closed then, answers cut short."""
    places = _Places()

    async def converse(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                with places.taken():
                    await _converse(stream, handler, places)
            except (trio.BrokenResourceError, _NoPlaceError):
                return
            except Exception:
                log.exception("connection failed")

    task_status.started()
    await trio.serve_listeners(converse, list(listeners))


class _NoPlaceError(Exception):
    """There are too many connections, and none of them waits for its client."""


class _Places:
    """The connections that are there, and since when which of them waits for its client."""

    def __init__(self) -> None:
        self._connections = 0
        self._waiting: dict[trio.CancelScope, None] = {}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One more connection. Raises _NoPlaceError if there is none to close for it."""
        if self._connections >= MAX_CONNECTIONS:
            slowest = next(iter(self._waiting), None)
            if slowest is None:
                raise _NoPlaceError
            del self._waiting[slowest]
            slowest.cancel()
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1

    @contextmanager
    def waiting_for_client(self) -> Iterator[trio.CancelScope]:
        """While the client has to do something; cancelled when it takes too long over it."""
        with trio.move_on_after(CLIENT_TIMEOUT_SECONDS) as scope:
            self._waiting[scope] = None
            try:
                yield scope
            finally:
                self._waiting.pop(scope, None)


async def _converse(stream: trio.SocketStream, handler: Handler, places: _Places) -> None:
    """Answer the requests of one connection until the peer has enough."""
    connection = h11.Connection(our_role=h11.SERVER)
    request: h11.Request | None
    while True:
        with places.waiting_for_client() as waiting:
            try:
                request = await _next_request(connection, stream)
            except h11.RemoteProtocolError as error:
                await _refuse(connection, stream, error)
                return
        if waiting.cancelled_caught or request is None:
            return
        answer = await _answer(handler, request)
        with places.waiting_for_client() as waiting:
            await _send(connection, stream, answer, head_only=request.method == b"HEAD")
        finished = connection.our_state is h11.DONE and connection.their_state is h11.DONE
        if waiting.cancelled_caught or not finished:
            return
        connection.start_next_cycle()


async def _next_request(
    connection: h11.Connection, stream: trio.SocketStream
) -> h11.Request | None:
    """The next request with its body read and dropped; None when the peer has closed.

    A client that asks first whether it should send a body is answered at once.
    """
    request: h11.Request | None = None
    body_bytes = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                return request
            connection.receive_data(await stream.receive_some(READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body_bytes += len(event.data)
            if body_bytes > MAX_BODY_BYTES:
                raise h11.RemoteProtocolError("body too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:
            return None


async def _refuse(
    connection: h11.Connection, stream: trio.SocketStream, error: h11.RemoteProtocolError
) -> None:
    """Tell a client that it does not speak HTTP, or too much of it, and hang up."""
    answer = Answer(
        status=error.error_status_hint,
        headers=(("Connection", "close"),),
        body=f"{error}\n".encode(errors="replace"),
    )
    await _send(connection, stream, answer)
    # With bytes of it unread, closing would reset the connection before it has the answer.
    with trio.move_on_after(GOODBYE_SECONDS):
        await stream.send_eof()
        while await stream.receive_some(READ_BYTES):
            pass


async def _answer(handler: Handler, request: h11.Request) -> Answer:
    method = request.method.decode("ascii")
    if method not in ("GET", "HEAD"):
        return Answer(
            status=405, headers=(("Allow", "GET, HEAD"),), body=b"405 method not allowed\n"
        )
    try:
        target = urlsplit(request.target.decode("ascii", "replace"))
    except ValueError:
        return Answer(status=400, body=b"400 bad request target\n")
    question = Question(
        method=method,
        path=unquote(target.path),
        query=dict(parse_qsl(target.query, keep_blank_values=True)),
    )
    try:
        return await handler(question)
    except Exception:
        log.exception("request failed", path=question.path)
        return Answer(status=500, body=b"500 internal server error\n")


async def _send(
    connection: h11.Connection,
    stream: trio.SocketStream,
    answer: Answer,
    *,
    head_only: bool = False,
) -> None:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Date", formatdate(usegmt=True)),
        ("X-Content-Type-Options", "nosniff"),
        *answer.headers,
    ]
    response = h11.Response(
        status_code=answer.status, reason=HTTPStatus(answer.status).phrase, headers=headers
    )
    data = connection.send(response) or b""
    if not head_only:
        data += connection.send(h11.Data(data=answer.body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(data)
