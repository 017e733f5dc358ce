"""WebSockets of the API server, on a runtime that speaks SPDY and knows none of their protocols."""

import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, field

from tests.turns import making_test_data
from tests.unit.server.serving import connect, serving, until
from tests.unit.streaming.test_streams import POD, Runtime, asking, observed
from tests.unit.streaming.test_websocket import CLOSE, PING, masked
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.server import route_requests
from trio_kubelet.streaming import PodStreams, stream_routes
from trio_kubelet.streaming.spdy import FRAMES_IN_A_TURN, data_frame

SPDY = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    b"X-Stream-Protocol-Version: %b\r\n\r\n"
)
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
PONG = 10
SYN_STREAM = 0x80030001
FIN = 1


def offering(protocol: str) -> tuple[str, ...]:
    return (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        f"Sec-WebSocket-Protocol: {protocol}",
        "Authorization: Bearer secret",
    )


V5 = offering("v5.channel.k8s.io")
TUNNEL = offering("SPDY/3.1+portforward.k8s.io")
EXEC = "/exec/ns/p/c?command=cat&input=1&output=1&error=1"


@define
class SpdyRuntime(Runtime):
    """A runtime whose streaming server speaks SPDY: echoes stdin in capitals until it ends."""

    types: list[str] = field(factory=list)
    received: bytearray = field(factory=bytearray)
    sizes: bytes = b""
    wanted_types: int = 4
    flood: bytes = b""

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                self.head = await until(stream, b"\r\n\r\n")
                await stream.send_all(SPDY % b"v4.channel.k8s.io")
                await self._command(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended.set()

    async def _command(self, stream: trio.SocketStream) -> None:
        headers, ids = zlib.decompressobj(), dict[int, str]()
        buffer = b""
        while data := await stream.receive_some():
            buffer += data
            while len(buffer) >= 8:
                first, second = struct.unpack(">II", buffer[:8])
                flags, size = second >> 24, second & 0xFFFFFF
                if len(buffer) < 8 + size:
                    break
                content, buffer = buffer[8 : 8 + size], buffer[8 + size :]
                if first == SYN_STREAM:
                    (id_,) = struct.unpack(">I", content[:4])
                    block = headers.decompress(content[10:])
                    ids[id_] = block[block.rindex(b"\0") + 2 :].decode()
                    self.types.append(ids[id_])
                    await stream.send_all(struct.pack(">III", 0x80030002, 4, id_))
                    if len(self.types) == self.wanted_types and self.flood:
                        await stream.send_all(self.flood)
                elif ids[first] == "resize":
                    self.sizes += content
                elif flags & FIN:
                    await self._end(stream, ids)
                    return
                else:
                    self.received += content
                    await stream.send_all(data_frame(self._id(ids, "stdout"), content.upper()))

    async def _end(self, stream: trio.SocketStream, ids: dict[int, str]) -> None:
        await stream.send_all(
            data_frame(self._id(ids, "stderr"), b"done")
            + data_frame(self._id(ids, "error"), b'{"status":"Success"}', is_last=True)
        )

    def _id(self, ids: dict[int, str], type_: str) -> int:
        return next(id_ for id_, each in ids.items() if each == type_)


@asynccontextmanager
async def node(
    runtime: Runtime, *, takes_websockets: bool = True, idle_seconds: float = 3600
) -> AsyncIterator[int]:
    """The port of a node with that runtime."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    runtime.url = runtime.url or f"http://127.0.0.1:{port}/exec/token"
    streams = PodStreams(
        find_pod=lambda _namespace, _name: POD,
        observed=observed,
        runtime=runtime,
        idle_seconds=lambda: idle_seconds,
        takes_websockets=takes_websockets,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, runtime.serve, listeners)
        async with serving(route_requests(stream_routes(streams))) as node_port:
            yield node_port
        nursery.cancel_scope.cancel()


@define
class Client:
    """The client's end of a WebSocket."""

    stream: trio.SocketStream
    head: bytes
    buffer: bytes

    async def send(self, data: bytes, opcode: int = 2) -> None:
        await self.stream.send_all(masked(data, opcode))

    async def receive(self) -> tuple[int, bytes]:
        """The next frame: its opcode and what is in it."""
        await self._have(2)
        opcode, size, start = self.buffer[0] & 15, self.buffer[1], 2
        if size == 126:
            await self._have(4)
            size, start = int.from_bytes(self.buffer[2:4], "big"), 4
        elif size == 127:
            await self._have(10)
            size, start = int.from_bytes(self.buffer[2:10], "big"), 10
        await self._have(start + size)
        data, self.buffer = self.buffer[start : start + size], self.buffer[start + size :]
        return opcode, data

    async def channel(self, wanted: bytes) -> bytes:
        """What comes until a channel's data has all of this; without what others say."""
        found = b""
        while wanted not in found:
            _, data = await self.receive()
            if data[:1] == wanted[:1] or data[0] == wanted[0]:
                found = found[:1] + (data if not found else data[1:])
        return found

    async def _have(self, size: int) -> None:
        while len(self.buffer) < size:
            data = await self.stream.receive_some()
            assert data, "the node has ended the connection"
            self.buffer += data


@asynccontextmanager
async def websocket(port: int, path: str, lines: tuple[str, ...]) -> AsyncIterator[Client]:
    async with await connect(port, asking(path, *lines, method="GET")) as stream:
        answer = await until(stream, b"\r\n\r\n")
        head, _, ahead = answer.partition(b"\r\n\r\n")
        yield Client(stream, head.lower(), ahead)


async def test_a_command_has_its_streams_and_its_stdin_an_end() -> None:
    runtime = SpdyRuntime()
    async with node(runtime) as port, websocket(port, EXEC, V5) as client:
        assert client.head.startswith(b"http/1.1 101 ")
        assert b"sec-websocket-protocol: v5.channel.k8s.io" in client.head
        assert b"s3pplmbitxaq9kygzzhzrbk+xoo=" in client.head
        assert await client.receive() == (2, bytes((STDOUT,))), "the streams are there"
        await client.send(bytes((STDIN,)) + b"abc")
        assert await client.receive() == (2, bytes((STDOUT,)) + b"ABC")
        await client.send(bytes((255, STDIN)))
        assert await client.receive() == (2, bytes((STDERR,)) + b"done")
        assert await client.receive() == (2, bytes((ERROR,)) + b'{"status":"Success"}')
        assert await client.receive() == (CLOSE, struct.pack(">H", 1000))
        await runtime.ended.wait()
    assert runtime.types == ["error", "stdin", "stdout", "stderr"]
    assert runtime.head.startswith(b"POST /exec/token HTTP/1.1\r\n")
    assert b"v4.channel.k8s.io" in runtime.head
    assert b"secret" not in runtime.head


async def test_a_terminal_has_a_size_and_no_stderr() -> None:
    runtime = SpdyRuntime()
    path = "/exec/ns/p/c?command=sh&input=1&output=1&error=1&tty=1"
    async with node(runtime) as port, websocket(port, path, V5) as client:
        await client.receive()
        await client.send(bytes((RESIZE,)) + b'{"Width":80,"Height":25}')
        await client.send(bytes((STDIN,)) + b"a")
        assert await client.receive() == (2, bytes((STDOUT,)) + b"A")
    assert runtime.types == ["error", "stdin", "stdout", "resize"]
    assert runtime.sizes == b'{"Width":80,"Height":25}'


async def test_a_stream_that_is_not_the_clients_is_not_written() -> None:
    runtime = SpdyRuntime()
    async with node(runtime) as port, websocket(port, EXEC, V5) as client:
        await client.receive()
        for data in (
            bytes((STDOUT,)) + b"x",
            bytes((RESIZE,)) + b"x",
            bytes((9,)) + b"x",
            b"",
            bytes((255,)),
            bytes((255, ERROR)),
            bytes((255, 77)),
            bytes((STDIN,)) + b"end",
        ):
            await client.send(data)
        assert await client.receive() == (2, bytes((STDOUT,)) + b"END")
    assert bytes(runtime.received) == b"end"


async def test_a_client_that_asks_whether_anybody_is_there_is_answered() -> None:
    async with node(SpdyRuntime()) as port, websocket(port, EXEC, V5) as client:
        await client.receive()
        await client.send(b"are you", PING)
        assert await client.receive() == (PONG, b"are you")


async def test_a_close_ends_the_command_and_is_answered() -> None:
    runtime = SpdyRuntime()
    async with node(runtime) as port, websocket(port, EXEC, V5) as client:
        await client.receive()
        await client.send(struct.pack(">H", 1000), CLOSE)
        assert await client.receive() == (CLOSE, struct.pack(">H", 1000))
        await runtime.ended.wait()


async def test_a_client_that_breaks_the_protocol_is_told() -> None:
    runtime = SpdyRuntime()
    async with node(runtime) as port, websocket(port, EXEC, V5) as client:
        await client.receive()
        await client.stream.send_all(b"\x82\x01x")  # not masked
        assert await client.receive() == (CLOSE, struct.pack(">H", 1002))
        await runtime.ended.wait()


async def test_much_input_and_many_small_frames_pass_whole() -> None:
    small = FRAMES_IN_A_TURN * 3 + 1
    runtime = SpdyRuntime(flood=b"".join(data_frame(5, b"f") for _ in range(small)))
    size = 3_000_000
    async with node(runtime) as port, websocket(port, EXEC, V5) as client:
        received = 0
        with making_test_data():
            sent = masked(bytes((STDIN,)) + b"i") * small
            sent += masked(bytes((STDIN,)) + b"x" * size)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stream.send_all, sent)
            while received < size + 2 * small:
                _, data = await client.receive()
                assert data[:1] == bytes((STDOUT,))
                received += len(data) - 1
    assert len(runtime.received) == size + small


async def test_a_tunnel_has_the_bytes_of_spdy_wherever_its_messages_end() -> None:
    runtime = Runtime(answer=SPDY % b"portforward.k8s.io")
    async with node(runtime) as port, websocket(port, "/portForward/ns/p", TUNNEL) as client:
        assert b"sec-websocket-protocol: spdy/3.1+portforward.k8s.io" in client.head
        await client.send(b"ab")
        await client.send(b"cd")
        found = b""
        while found != b"ABCD":
            opcode, data = await client.receive()
            assert opcode == 2
            found += data
        await client.send(b"", CLOSE)
        assert (await client.receive())[0] == CLOSE
        await runtime.ended.wait()
    (asked,) = runtime.asked
    assert asked.port == [], "ports come in the tunnel"
    assert b"portforward.k8s.io" in runtime.head


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (EXEC, V5),
        ("/portForward/ns/p?port=80", TUNNEL),
    ],
)
async def test_without_the_gate_they_are_between_the_client_and_the_runtime(
    path: str, lines: tuple[str, ...]
) -> None:
    runtime = Runtime()
    async with (
        node(runtime, takes_websockets=False) as port,
        await connect(port, asking(path, *lines, method="GET")) as stream,
    ):
        await until(stream, b"\r\n\r\n")
    assert b"upgrade: websocket" in runtime.head.lower()


async def test_an_older_protocol_is_between_the_client_and_the_runtime() -> None:
    runtime = Runtime()
    async with node(runtime) as port:
        lines = offering("v4.channel.k8s.io")
        async with await connect(port, asking(EXEC, *lines, method="GET")) as stream:
            await until(stream, b"\r\n\r\n")
    assert b"sec-websocket-protocol: v4.channel.k8s.io" in runtime.head.lower()


@pytest.mark.parametrize(
    ("runtime", "lines", "status"),
    [
        (SpdyRuntime(error=RpcError(Code.NOT_FOUND, "no such")), V5, 404),
        (SpdyRuntime(url="http://127.0.0.1:1/x"), V5, 500),
        (SpdyRuntime(), [*V5[:3], *V5[4:]], 400),
    ],
)
async def test_what_cannot_be_streamed_is_told_before_the_protocol_is_switched(
    runtime: Any, lines: Any, status: int
) -> None:
    async with (
        node(runtime) as port,
        await connect(port, asking(EXEC, *lines, method="GET")) as stream,
    ):
        answer = await until(stream, b"\r\n\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_websocket_that_is_idle_too_long_is_closed() -> None:
    runtime = SpdyRuntime()
    async with node(runtime, idle_seconds=0.1) as port, websocket(port, EXEC, V5) as client:
        await client.receive()
        assert (await client.receive())[0] == CLOSE
        await runtime.ended.wait()
