"""The other end of a connection: every wait for it is limited.

Whatever ends the connection from outside (the client hangs up, takes too long, has to make room)
is one exception, ClientGoneError: nothing that a handler or a log has to know more about.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import trio

from trio_kubelet.server.connections import ClientGoneError, Place
from trio_kubelet.server.limits import Limits
from trio_kubelet.server.messages import ClientCertificate, Peer, TcpPeer, UnixPeer
from trio_kubelet.server.tls import shown_certificate
from trio_kubelet.tls_stream import TlsStream

READ_BYTES = 64 * 1024
SEND_BYTES = 64 * 1024
GOODBYE_SECONDS = 1.0
_PEER_CREDENTIALS = struct.Struct("3i")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Client:
    """The client of one connection; `limits` say how long it is waited for."""

    def __init__(self, stream: trio.abc.Stream, peer: Peer, place: Place, limits: Limits) -> None:
        self.stream = stream
        self.peer = peer
        self.limits = limits
        self.place = place
        self._ahead = bytearray()
        self._ended = False

    @cached_property
    def certificate(self) -> ClientCertificate | None:
        """The client's certificates; to be asked for once a request has arrived."""
        return shown_certificate(self.stream) if isinstance(self.stream, TlsStream) else None

    @property
    def has_ended(self) -> bool:
        """True if it is known to send nothing more."""
        return self._ended

    async def greet(self, seconds: float) -> None:
        """Make the handshake where there is TLS. Raises ClientGoneError."""
        if isinstance(self.stream, TlsStream):
            with self._waiting(seconds, for_request=True):
                await self.stream.do_handshake(self.place.turn)

    async def receive(self, seconds: float, *, for_request: bool = False) -> bytes:
        """The next bytes of the client, empty when it has ended. Raises ClientGoneError."""
        if self._ahead:
            data, self._ahead = bytes(self._ahead), bytearray()
            return data
        if self._ended:
            return b""
        with self._waiting(seconds, for_request=for_request):
            received = await self.stream.receive_some(READ_BYTES)
            await self.place.turn()
        return bytes(received)

    async def read_ahead(self) -> None:
        """Wait, without a limit, until the client has ended, or sent more than fits into a head.

        What it sends is kept for `receive`. Raises ClientGoneError, over TLS also for a client
        that has ended: there is no half-close. Cancelled, it loses nothing.
        """
        while not self._ended and len(self._ahead) < self.limits.head_bytes:
            try:
                room = self.limits.head_bytes - len(self._ahead)
                data = await self.stream.receive_some(room)
            except trio.BrokenResourceError as error:
                self.place.gone = True
                raise ClientGoneError from error
            self._ahead += data
            self._ended = not data
            await self.place.turn()
        if self._ended and isinstance(self.stream, TlsStream):
            self.place.gone = True
            raise ClientGoneError

    async def send(self, data: bytes) -> None:
        """Send everything, however slowly, as long as it gets on. Raises ClientGoneError."""
        rest = memoryview(data)
        while rest:
            with self._waiting(self.limits.take_seconds):
                await self.place.turn()
                await self.stream.send_all(rest[:SEND_BYTES])
            rest = rest[SEND_BYTES:]

    async def linger(self) -> None:
        """Say that nothing more comes, and drop what the client still sends, for a moment.

        With bytes of it unread, closing would reset the connection before it has the response.
        """
        try:
            with self._waiting(GOODBYE_SECONDS):
                if isinstance(self.stream, trio.abc.HalfCloseableStream):
                    await self.stream.send_eof()
                while await self.stream.receive_some(READ_BYTES):
                    await self.place.turn()
        except ClientGoneError:
            return

    def reset_on_close(self) -> None:
        """Make the end of the connection an error for the client, where it is on the network."""
        connection = socket_of(self.stream)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    @contextmanager
    def _waiting(self, seconds: float, *, for_request: bool = False) -> Iterator[None]:
        try:
            with self.place.waiting(seconds, for_request=for_request) as scope:
                yield
        except trio.BrokenResourceError as error:
            self.place.gone = True
            raise ClientGoneError from error
        if scope.cancelled_caught or self.place.gone:
            self.place.gone = True
            raise ClientGoneError


class UpgradedStream(trio.abc.Stream):
    """A connection that was handed over; what was read ahead comes first. It is raw bytes.

    Errors are those of trio's streams. There is no half-close: TLS has none.
    """

    def __init__(self, client: Client, ahead: bytes) -> None:
        self._client = client
        self._ahead = ahead

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """At least one byte, or none at the end. Cancelled, it loses nothing."""
        if self._ahead:
            await trio.lowlevel.checkpoint()
        else:
            with self._noticing():
                self._ahead = bytes(await self._client.stream.receive_some(max_bytes))
        await self._client.place.turn()
        data = self._ahead[:max_bytes]
        self._ahead = self._ahead[len(data) :]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        await self._client.place.turn()
        with self._noticing():
            await self._client.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the connection takes more."""
        with self._noticing():
            await self._client.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.stream.aclose()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Note that the client has gone, so that what its handler raises is no bug."""
        try:
            yield
        except trio.BrokenResourceError:
            self._client.place.gone = True
            raise


def socket_of(stream: trio.abc.AsyncResource) -> trio.socket.SocketType:
    """The socket below a stream, with TLS or without."""
    connection = stream.connection if isinstance(stream, TlsStream) else stream
    assert isinstance(connection, trio.SocketStream)
    return connection.socket


def peer_of(stream: trio.abc.Stream) -> Peer:
    """The peer at the other end. Raises ClientGoneError if nobody is any more."""
    connection = socket_of(stream)
    if connection.family == socket.AF_UNIX:
        size = _PEER_CREDENTIALS.size
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return UnixPeer(*_PEER_CREDENTIALS.unpack(found))
    try:
        host, port = connection.getpeername()[:2]
    except OSError as error:
        raise ClientGoneError from error
    return TcpPeer(host, port)
