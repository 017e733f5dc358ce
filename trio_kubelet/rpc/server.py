"""The server's side of gRPC on a unix socket: puts service objects on a path.

Each call is a trio task that runs the service's coroutine; it is cancelled when the client resets
the call, goes away, or lets its deadline pass. What a service raises is mapped in services.py.
"""

import socket
from asyncio import BaseTransport
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final
from weakref import WeakSet

import grpclib.server
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.protocol import H2Protocol
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from trio_kubelet.kernel.unix_sockets import bind_unix
from trio_kubelet.rpc.channel import WINDOWS, BytesCodec
from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.loop import RpcLoop, current_rpc_loop
from trio_kubelet.rpc.methods import AnyMethod, Contract, methods_of
from trio_kubelet.rpc.services import Services
from trio_kubelet.rpc.stubs.runtime import v1 as cri

CRI: tuple[Contract, ...] = (cri.RuntimeServiceBase, cri.ImageServiceBase)
BACKLOG = 128
MANY_CALLS = 2**31 - 1

Stream = grpclib.server.Stream[bytes, bytes]


async def serve(
    services: Sequence[object],
    path: str | Path,
    *,
    contracts: Sequence[Contract] = CRI,
    mode: int = 0o660,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the methods of some contracts on a unix socket until cancelled.

    A method goes to the first of `services` that has a coroutine of its name. Meant for
    `await nursery.start(serve, services, path)`, inside `open_rpc_loop()`. The socket gets
    `mode`. A socket file that nobody listens on is replaced; raises OSError (EADDRINUSE) where
    somebody does, and (EEXIST) where the path is something else. When cancelled, cancels all
    handlers, waits for them, drops the connections and removes the socket file.
    """
    loop = current_rpc_loop()
    listener, inode = _listen(Path(path), mode)
    server = _Server(_Contracts(loop, Services(*services), contracts))
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

    def __init__(self, loop: RpcLoop, services: Services, contracts: Sequence[Contract]) -> None:
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
            request = await stream.recv_message() or b""
            await stream.send_message(await self._run(self._services.unary, method, request))

        return answer

    def _stream(self, method: AnyMethod) -> Callable[[Stream], Awaitable[None]]:
        async def answer(stream: Stream) -> None:
            request = await stream.recv_message() or b""

            async def send(data: bytes) -> None:
                try:
                    await self._loop.run(stream.send_message(data))
                except ProtocolError as error:
                    raise RpcError(Code.CANCELLED, "the client has gone") from error

            await self._run(self._services.stream, method, request, send)

        return answer

    async def _run(self, serve: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        """Run a trio coroutine from the asyncio side; cancelling here cancels it."""
        try:
            return await self._loop.asyncio_loop.trio_as_future(serve, *arguments)
        except RpcError as error:
            raise grpclib.GRPCError(Status(error.code.value), error.message) from error


class _Connection(H2Protocol):
    """Lets a client have as many calls under way as it likes, from its first frame on."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        h2 = self.connection._connection
        h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: MANY_CALLS})
        # In force here before the client has heard of it: until then it knows of no limit, and
        # h2 would drop the connection at the 101st call.
        h2.local_settings.acknowledge()
        self.connection.flush()


class _Server(grpclib.server.Server):
    """Knows its connections, to drop them at the end."""

    def __init__(self, contracts: _Contracts) -> None:
        super().__init__([contracts], codec=BytesCodec(), config=WINDOWS)
        self._connections: WeakSet[H2Protocol] = WeakSet()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        connection = _Connection(protocol.handler, protocol.config, protocol.h2_config)
        self._connections.add(connection)
        return connection

    async def stop(self) -> None:
        if self._server is None:
            return
        self.close()
        for handler in tuple(self._handlers):
            await handler.wait_closed()
        for connection in tuple(self._connections):
            if hasattr(connection, "processor"):
                connection.processor.close()
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
