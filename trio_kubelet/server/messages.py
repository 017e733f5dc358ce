"""The arguments and results of handlers: a request and a response.

A handler is a coroutine from the one to the other and knows nothing of sockets. A body comes and
goes as a stream, so that its size costs no memory. A handler that is to speak another protocol
(exec, port-forward) takes the connection over and returns nothing.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

import trio
from attrs import field, frozen

from trio_kubelet.server.connections import Place, TooManyLastingError

MAX_BODY_BYTES = 64 * 1024
"""The longest body of a request whose route says nothing else."""

HeaderPairs = Iterable[tuple[str, str]]
SwitchProtocols = Callable[[HeaderPairs], Awaitable[trio.abc.Stream]]
ReceivePiece = Callable[[], Awaitable[bytes]]


class RequestError(Exception):
    """A request that cannot be answered as it was made: the response's status and its words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@frozen
class Values:
    """Names with one or several values each, in the order in which they came: a query's."""

    pairs: tuple[tuple[str, str], ...] = ()

    def first(self, name: str, default: str = "") -> str:
        """The first value of a name."""
        return next(iter(self.all(name)), default)

    def all(self, name: str) -> tuple[str, ...]:
        """All values of a name."""
        return tuple(value for found, value in self.pairs if found == name)

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))


def _lowered(pairs: HeaderPairs) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in pairs)


@frozen
class Headers(Values):
    """Header fields; upper and lower case make no difference in their names."""

    pairs: tuple[tuple[str, str], ...] = field(default=(), converter=_lowered)

    def all(self, name: str) -> tuple[str, ...]:
        """All values of a header, one for each line that it had."""
        return super().all(name.lower())


@frozen
class TcpPeer:
    """A client on the network."""

    host: str
    port: int


@frozen
class UnixPeer:
    """A process on this machine, as the kernel knew it when it connected."""

    pid: int
    uid: int
    gid: int


Peer = TcpPeer | UnixPeer


@frozen
class ClientCertificate:
    """The certificates that a client has shown, and the authorities (PEM) that verified them."""

    der: bytes = field(repr=False)
    verified_by: bytes = field(repr=False)


class RequestBody:
    """The body of a request as it arrives: iterate over its pieces, or `read` it whole, once.

    Both raise RequestError if it is too long (413) or malformed (400); nothing is asked of the
    client before. A cancelled read can be gone on with.
    """

    def __init__(self, receive: ReceivePiece | None = None, length: int | None = 0) -> None:
        """`receive` gives the next piece, empty at the end; `length` is None if not known."""
        self._receive = receive
        self._length = length
        self._received = 0
        self._max_bytes = MAX_BODY_BYTES

    def limit(self, max_bytes: int) -> None:
        """Take at most so many bytes. Raises RequestError (413) if more are announced."""
        self._max_bytes = max_bytes
        if self._length is not None and self._length > max_bytes:
            raise _too_large(max_bytes)

    def __aiter__(self) -> "RequestBody":
        return self

    async def __anext__(self) -> bytes:
        piece = await self._receive() if self._receive else b""
        if not piece:
            raise StopAsyncIteration
        self._received += len(piece)
        if self._received > self._max_bytes:
            raise _too_large(self._max_bytes)
        return piece

    async def read(self) -> bytes:
        """The whole body, or what is left of it."""
        return b"".join([piece async for piece in self])


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(413, f"the body is larger than {max_bytes} bytes")


async def _no_upgrade(_headers: HeaderPairs) -> trio.abc.Stream:
    raise RequestError(400, "the request asks for no other protocol")


@frozen(kw_only=True)
class Request:
    """One request. `path` is decoded, without the query; `parameters` are those of the path."""

    method: str
    path: str
    parameters: Mapping[str, str] = field(factory=dict)
    query: Values = Values()
    headers: Headers = Headers()
    peer: Peer = TcpPeer("127.0.0.1", 0)
    place: Place = field(factory=Place.alone)
    """The connection that it came on, among the others."""
    certificate: ClientCertificate | None = None
    body: RequestBody = field(factory=RequestBody)
    may_switch: bool = False
    """True if `switch_protocols` will do it: asked for with all that belongs to it, no body."""
    _switch_protocols: SwitchProtocols = _no_upgrade

    def will_last(self) -> None:
        """Count this request as one that lasts, for the owner of its place.

        Raises RequestError (429) if there are too many. It may have to end for one of another
        namespace, and is cancelled then.
        """
        try:
            self.place.last()
        except TooManyLastingError as error:
            raise RequestError(429, str(error)) from None

    async def switch_protocols(self, headers: HeaderPairs) -> trio.abc.Stream:
        """Answer 101 with these headers and take over the connection, with what was read ahead.

        The handler returns None after this, and the connection is closed. Time limits are the
        handler's own. Raises RequestError (400) if the request does not ask for an upgrade.
        """
        return await self._switch_protocols(headers)


@frozen(kw_only=True)
class Response:
    """One response. `headers` are those beside type, length and date.

    A body that is a generator is sent piece by piece as it comes, after the head, and is closed
    when the client has gone. If it raises, the connection is cut so that the client sees that
    something is missing. It must not hold a nursery or cancel scope open while it yields.
    """

    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | AsyncGenerator[bytes, None] = b""


Handler = Callable[[Request], Awaitable[Response | None]]
"""Answers a request; None if it has taken over the connection."""
