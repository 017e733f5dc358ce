"""The server's side of gRPC on a unix socket: puts service objects on a path.

Each call is a trio task that runs the service's coroutine; it is cancelled when the client resets
the call, goes away, or lets its deadline pass. What a service raises is mapped in services.py.
Clients that are not trusted have limits.
"""

import asyncio
import socket
import time
from asyncio import BaseTransport
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import grpclib.server
import trio
from attrs import frozen
from grpclib.const import Cardinality, Handler, Status
from grpclib.protocol import H2Protocol
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from trio_kubelet.kernel.unix_sockets import bind_unix
from trio_kubelet.rpc.channel import PREFIX, SMALL_WINDOWS, WINDOWS, BytesCodec
from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.frames import PREFACE_BYTES, Pace, PacedProtocol
from trio_kubelet.rpc.loop import RpcLoop, current_rpc_loop
from trio_kubelet.rpc.methods import AnyMethod, Contract, methods_of
from trio_kubelet.rpc.services import Services
from trio_kubelet.rpc.stubs.runtime import v1 as cri

CRI: tuple[Contract, ...] = (cri.RuntimeServiceBase, cri.ImageServiceBase)
BACKLOG = 128
MANY_CALLS = 2**31 - 1
MOST_PATH_CHARACTERS = 256
"""Of the path of a call that is named in an error."""

Stream = grpclib.server.Stream[bytes, bytes]


@frozen(kw_only=True)
class ServerLimits:
    """The limits of clients that are not trusted. All of a server share its connections."""

    connections: int = 32
    """With one more, the one goes whose last call, or begin, is the longest ago."""
    calls: int = 32
    """Of one connection at once; its other calls wait in the client."""
    request_bytes: int = 64 * 1024
    request_seconds: float = 10.0
    """For a request to come."""
    answer_seconds: float = 10.0
    """For a client to take an answer; the connection of one that does not is dropped."""
    unread_bytes: int = 16 * 1024 * 1024
    """Of answers that clients have not taken. With more, the connection with the most goes."""


async def serve(
    services: Sequence[object],
    path: str | Path,
    *,
    contracts: Sequence[Contract] = CRI,
    mode: int = 0o660,
    limits: ServerLimits | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the methods of some contracts on a unix socket until cancelled.

    A method goes to the first of `services` that has a coroutine of its name. Meant for
    `await nursery.start(serve, services, path)`, inside `open_rpc_loop()`. The socket gets
    `mode`. Without `limits` clients are trusted. A socket file that nobody listens on is replaced;
    raises OSError (EADDRINUSE) where somebody does, and (EEXIST) where the path is something else.
    When cancelled, cancels all handlers, waits for them, drops the connections and removes the
    socket file.
    """
    loop = current_rpc_loop()
    listener, inode = _listen(Path(path), mode)
    server = _Server(_Contracts(loop, Services(*services), contracts, limits), loop, limits)
    try:
        await loop.run(server.start(sock=listener))
        task_status.started(str(path))
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await loop.run(server.stop())
        listener.close()
        _remove(Path(path), inode)


@final
class _Contracts:
    """A servable of grpclib: the handlers of all methods, by their paths."""

    def __init__(
        self,
        loop: RpcLoop,
        services: Services,
        contracts: Sequence[Contract],
        limits: ServerLimits | None,
    ) -> None:
        self._limits = limits
        self._unread = _UnreadAnswers(limits.unread_bytes if limits is not None else 0)
        self._loop = loop
        self._services = services
        self._contracts = contracts

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            method.path: self._handler(method)
            for contract in self._contracts
            for method in methods_of(contract).values()
        }

    def _handler(self, method: AnyMethod) -> Handler:
        answer = self._stream(method) if method.streams else self._unary(method)
        cardinality = Cardinality.UNARY_STREAM if method.streams else Cardinality.UNARY_UNARY
        return Handler(answer, cardinality, bytes, bytes)

    def _unary(self, method: AnyMethod) -> Callable[[Stream], Awaitable[None]]:
        async def answer(stream: Stream) -> None:
            request = await self._request(stream)
            await self._send(stream, await self._run(self._services.unary, method, request))

        return answer

    def _stream(self, method: AnyMethod) -> Callable[[Stream], Awaitable[None]]:
        async def answer(stream: Stream) -> None:
            request = await self._request(stream)

            async def send(data: bytes) -> None:
                try:
                    await self._loop.run(self._send(stream, data))
                except ProtocolError as error:
                    raise RpcError(Code.CANCELLED, "the client has gone") from error

            await self._run(self._services.stream, method, request, send)

        return answer

    async def _request(self, stream: Stream) -> bytes:
        """Receive the request. Raises GRPCError for one that is over the limits."""
        limits = self._limits
        if limits is None:
            return await stream.recv_message() or b""
        try:
            async with asyncio.timeout(limits.request_seconds):
                return await _received(stream, limits.request_bytes)
        except TimeoutError:
            words = f"no request within {limits.request_seconds:g} s"
            raise grpclib.GRPCError(Status.DEADLINE_EXCEEDED, words) from None

    async def _send(self, stream: Stream, answer: bytes) -> None:
        """Send an answer. Of a client that does not take it in time the connection is dropped."""
        limits = self._limits
        if limits is None:
            await stream.send_message(answer)
            return
        transport = stream._stream._transport
        try:
            with self._unread.noted(transport, len(answer)):
                async with asyncio.timeout(limits.answer_seconds):
                    await stream.send_message(answer)
        except TimeoutError:
            transport.abort()  # To reset the call would be to wait until the client reads.
            words = f"the answer was not taken within {limits.answer_seconds:g} s"
            raise grpclib.GRPCError(Status.DEADLINE_EXCEEDED, words) from None

    async def _run(self, serve: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        """Run a trio coroutine from the asyncio side; cancelling here cancels it."""
        try:
            return await self._loop.asyncio_loop.trio_as_future(serve, *arguments)
        except RpcError as error:
            raise grpclib.GRPCError(Status(error.code.value), error.message) from error


@final
class _UnreadAnswers:
    """The sizes of the answers of one server that are being sent, by connection."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = Counter[asyncio.WriteTransport]()

    @contextmanager
    def noted(self, transport: asyncio.WriteTransport, size: int) -> Iterator[None]:
        """Count an answer while the block sends it; connections with too much are dropped."""
        self._bytes[transport] += size
        while self._bytes.total() > self._max_bytes:
            ((largest, _),) = self._bytes.most_common(1)
            del self._bytes[largest]
            largest.abort()
        try:
            yield
        finally:
            if transport in self._bytes:
                self._bytes[transport] -= size
            self._bytes += Counter()  # Those without any are forgotten.


async def _received(stream: Stream, max_bytes: int) -> bytes:
    """Receive a request that has no more bytes. Raises GRPCError."""
    try:
        prefix = await stream._stream.recv_data(PREFIX.size)
        if not prefix:
            return b""
        is_compressed, size = PREFIX.unpack(prefix)
        if is_compressed:
            raise grpclib.GRPCError(Status.UNIMPLEMENTED, "requests must not be compressed")
        if size > max_bytes:
            words = f"received message larger than max ({size} vs. {max_bytes})"
            raise grpclib.GRPCError(Status.RESOURCE_EXHAUSTED, words)
        return await stream._stream.recv_data(size)
    except AssertionError as error:
        raise grpclib.GRPCError(Status.INTERNAL, "the request is cut short") from error


@final
class _Methods(Mapping[str, Handler]):
    """Handlers by the paths of their methods; every other path has one, too.

    grpclib would answer calls of methods that it does not know without a content type, and clients
    take that for no answer of gRPC: they would not see that it is UNIMPLEMENTED.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._services = {path.split("/")[1] for path in handlers}

    def __getitem__(self, path: str) -> Handler:
        return self._handlers.get(path) or self._unknown(path[:MOST_PATH_CHARACTERS])

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def _unknown(self, path: str) -> Handler:
        service, _, method = path.removeprefix("/").partition("/")
        is_known = service in self._services
        words = f"unknown method {method!r} for service" if is_known else "unknown service"

        async def refuse(_: Stream) -> None:
            raise grpclib.GRPCError(Status.UNIMPLEMENTED, f"{words} {service!r}")

        return Handler(refuse, Cardinality.UNARY_UNARY, bytes, bytes)


class _Connection(PacedProtocol):
    """Lets a client have as many calls under way as the limits say, from its first frame on."""

    def __init__(self, server: "_Server", protocol: H2Protocol, pace: Pace | None) -> None:
        super().__init__(
            protocol.handler,
            protocol.config,
            protocol.h2_config,
            preface_bytes=PREFACE_BYTES,
            pace=pace,
        )
        self._server = server

    @property
    def last_call_at(self) -> float:
        """The time of its last call, or of its begin, on the system's monotonic clock."""
        return self.connection.last_stream_created or self.begun_at

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.begun_at = time.monotonic()  # the clock of grpclib
        h2 = self.connection._connection
        h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: self._server.calls})
        # In force here before the client has heard of it: until then it knows of no limit, and
        # h2 would drop the connection at the 101st call.
        h2.local_settings.acknowledge()
        self.connection.flush()
        self._server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._server.lost(self)


class _Server(grpclib.server.Server):
    """Knows its connections, to drop them at the end."""

    def __init__(self, contracts: _Contracts, loop: RpcLoop, limits: ServerLimits | None) -> None:
        config = WINDOWS if limits is None else SMALL_WINDOWS
        super().__init__([contracts], codec=BytesCodec(), config=config)
        self._mapping = _Methods(self._mapping)  # type: ignore[assignment] # It is only read.
        self.calls = MANY_CALLS if limits is None else limits.calls
        self._frames = loop.frames
        self._limits = limits
        self._connections: dict[_Connection, None] = {}

    def _protocol_factory(self) -> H2Protocol:
        pace = None if self._limits is None else Pace(self._frames)
        return _Connection(self, super()._protocol_factory(), pace)

    def opened(self, connection: _Connection) -> None:
        """Note a connection, for which another may have to go."""
        if self._limits is not None and len(self._connections) >= self._limits.connections:
            oldest = min(self._connections, key=lambda each: each.last_call_at)
            del self._connections[oldest]
            oldest.abort()
        self._connections[connection] = None

    def lost(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    async def stop(self) -> None:
        if self._server is None:
            return
        self.close()
        for handler in tuple(self._handlers):
            await handler.wait_closed()
        for connection in tuple(self._connections):
            connection.processor.close()
            connection.drop_unsent()
        await self._server.wait_closed()


def _listen(path: Path, mode: int) -> tuple[socket.socket, int]:
    """Bind a socket and tell its inode."""
    return bind_unix(path, mode=mode, backlog=BACKLOG), path.stat().st_ino


def _remove(path: Path, inode: int) -> None:
    """Remove the socket file unless another server has replaced it."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        return
