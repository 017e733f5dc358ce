"""The runtime's end of a stream: dialled, asked to switch protocols, and joined to the client's.

Only the headers that have to do with the protocol are passed on, never who the client is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import h11
import trio
from attrs import frozen

from trio_kubelet.server.messages import Headers, RequestError, Response
from trio_kubelet.tasks.pieces import StreamPieces

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
MAX_ERROR_BYTES = 64 * 1024
READ_BYTES = 8 * 1024
"""As much of an answer is read at a time: what comes with its head is kept as the stream is."""

_PASSED_ON = frozenset({"upgrade", "x-stream-protocol-version", "user-agent", "origin"})
_PROTOCOLS = "sec-websocket-protocol"
_BEARER = "base64url.bearer.authorization.k8s.io."
_NOT_PASSED_BACK = frozenset({"connection", "date", "content-length", "transfer-encoding"})


@frozen
class SwitchedConnection:
    """The runtime has switched protocols; `ahead` is what it has sent already."""

    stream: trio.SocketStream
    headers: tuple[tuple[str, str], ...]
    ahead: bytes


async def dial(url: str, method: str, headers: Headers) -> SwitchedConnection | Response:
    """Connect to where the runtime streams; a Response is its refusal. Raises RequestError."""
    host, port, netloc, target = _place(url)
    with _refusing("cannot be reached", CONNECT_SECONDS):
        stream = await trio.open_tcp_stream(host, port)
    asked = [("Host", netloc), ("Connection", "Upgrade"), *_passed_on(headers)]
    try:
        with _refusing("does not answer", ANSWER_SECONDS):
            return await _ask(stream, method, target, asked)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


def _place(url: str) -> tuple[str, int, str, str]:
    """Host, port, both in one, and the request's target, by the runtime's word."""
    try:
        where = urlsplit(url)
        host, port = where.hostname, where.port or 80
    except ValueError:
        host, port = None, 0
    if not host or where.scheme != "http" or not url.isascii():
        raise RequestError(500, "the runtime streams at no address that can be dialled")
    target = (where.path or "/") + (f"?{where.query}" if where.query else "")
    return host, port, where.netloc, target


async def _ask(
    stream: trio.SocketStream, method: str, target: str, headers: Sequence[tuple[str, str]]
) -> SwitchedConnection | Response:
    http = h11.Connection(h11.CLIENT)
    # As they came: a value may have bytes that are no ASCII.
    pairs_sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    request = h11.Request(method=method, target=target, headers=pairs_sent)
    await stream.send_all(http.send(request) + http.send(h11.EndOfMessage()))
    answer = await _next(http, stream)
    while isinstance(answer, h11.InformationalResponse) and answer.status_code != 101:
        answer = await _next(http, stream)
    if isinstance(answer, h11.InformationalResponse):
        pairs = Headers((n.decode("latin-1"), v.decode("latin-1")) for n, v in answer.headers).pairs
        passed = tuple(pair for pair in pairs if pair[0] not in _NOT_PASSED_BACK)
        return SwitchedConnection(
            stream, (("Connection", "Upgrade"), *passed), http.trailing_data[0]
        )
    if not isinstance(answer, h11.Response):
        raise h11.RemoteProtocolError("no response")
    body = b""
    while isinstance(event := await _next(http, stream), h11.Data) and len(body) < MAX_ERROR_BYTES:
        body += event.data
    await trio.aclose_forcefully(stream)
    return Response(status=answer.status_code, body=body[:MAX_ERROR_BYTES])


async def _next(http: h11.Connection, stream: trio.SocketStream) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await stream.receive_some(READ_BYTES))
    return event


def _passed_on(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers.pairs:
        if name == _PROTOCOLS:
            value = _without_tokens(value)
            if value:
                yield name, value
        elif name in _PASSED_ON or name.startswith("sec-websocket-"):
            yield name, value


def _without_tokens(protocols: str) -> str:
    """Without the one that browsers put a bearer token into."""
    every = (each.strip() for each in protocols.split(","))
    return ", ".join(each for each in every if not each.startswith(_BEARER))


@contextmanager
def _refusing(what: str, seconds: float) -> Iterator[None]:
    """Make of what can go wrong, or take too long, an answer for the client."""
    try:
        with trio.fail_after(seconds):
            yield
    except (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.ProtocolError) as error:
        raise RequestError(500, f"the runtime's streaming server {what}") from error


MOST_PIECE_BYTES = 128 * 1024
LEAST_PIECE_BYTES = 8 * 1024
ALL_PIECES_BYTES = 1 << 20
"""Of the pieces that all streams have in hand in one direction; TLS holds each of them twice more.

Where nobody reads at the other end, each stream keeps its piece for hours.
"""
LAST_WORDS_SECONDS = 10.0
"""The time that the other end may take to end after the client has."""


async def splice(
    client: trio.abc.Stream,
    partner: trio.SocketStream,
    ahead: bytes,
    pieces: StreamPieces,
    idle_seconds: float,
) -> None:
    """Pass bytes on, first those that the partner has sent `ahead`; returns when it is over.

    It is when the partner ends, when either connection breaks, some seconds after the client has
    ended (its end is passed on), or when nothing has come from either for `idle_seconds` (0: no
    limit). Closes the partner's connection.
    """
    with trio.CancelScope() as over:

        def moved() -> None:
            if idle_seconds > 0:
                over.deadline = trio.current_time() + idle_seconds

        async def from_client() -> None:
            try:
                while data := await client.receive_some(pieces.size_bytes):
                    moved()
                    await partner.send_all(data)
                await partner.send_eof()
                await trio.sleep(LAST_WORDS_SECONDS)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            over.cancel()

        async def from_partner() -> None:
            try:
                if ahead:
                    await client.send_all(ahead)
                while data := await partner.receive_some(pieces.size_bytes):
                    moved()
                    await client.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            over.cancel()

        moved()
        with pieces.one_more_stream():
            async with partner, trio.open_nursery() as nursery:
                nursery.start_soon(from_client)
                nursery.start_soon(from_partner)
