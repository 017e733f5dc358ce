"""Frames of HTTP/2 are taken a few in a turn, and from a peer without trust only so fast."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpclib.protocol
import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded

from trio_kubelet.rpc import Channel, Code, RpcError
from trio_kubelet.rpc.frames import (
    BURST,
    BURSTS_OF_ALL,
    WORK_IN_A_SECOND,
    WORK_IN_A_TURN,
    FrameBudget,
    FrameCut,
    Pace,
)
from trio_kubelet.rpc.loop import RpcLoop
from trio_kubelet.rpc.stubs.runtime import v1 as cri

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
MANY = 2000


def frame(kind: int, content: bytes = b"", stream: int = 0) -> bytes:
    head = len(content).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big")
    return head + content


def turns_of(data: bytes, cut: FrameCut) -> list[bytes]:
    """What is taken in each turn, until nothing is left, or what is left is no head."""
    left, pieces = bytearray(data), []
    while left:
        end, _ = cut.take(left)
        if not end:
            break
        pieces.append(bytes(left[:end]))
        del left[:end]
    return pieces


def test_so_many_frames_are_taken_in_a_turn() -> None:
    data = frame(DATA, b"x") * (WORK_IN_A_TURN + 1)
    turns = turns_of(data, FrameCut())
    assert turns == [frame(DATA, b"x") * WORK_IN_A_TURN, frame(DATA, b"x")]


@pytest.mark.parametrize(("kind", "turns"), [(HEADERS, 8), (SETTINGS, 4), (DATA, 1)])
def test_headers_and_long_settings_are_more_work(kind: int, turns: int) -> None:
    assert len(turns_of(frame(kind, bytes(16_000)) * 8, FrameCut())) == turns


def test_headers_whose_fields_have_a_byte_each_are_a_turn_of_their_own() -> None:
    fields = frame(HEADERS, b"\x40\1a\0" + b"\xbe" * 600, stream=1)
    assert turns_of(fields * 3, FrameCut()) == [fields] * 3


@pytest.mark.parametrize("size", [1, 5, 9, 10, 100])
def test_frames_are_found_in_whatever_pieces_they_come(size: int) -> None:
    data = (frame(DATA, b"content") + frame(PING, bytes(8))) * 10
    cut, left, taken, work = FrameCut(), bytearray(), bytearray(), 0
    for start in range(0, len(data), size):
        left += data[start : start + size]
        end, more = cut.take(left)
        taken += left[:end]
        del left[:end]
        work += more
    assert (bytes(taken), work) == (data, 20)


def test_the_preface_of_a_client_is_no_frame() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    cut = FrameCut(len(preface))
    assert cut.take(bytearray(preface + frame(SETTINGS))) == (len(preface) + 9, 1)


def test_a_burst_has_no_delay_and_what_follows_has() -> None:
    pace = Pace(FrameBudget())
    assert pace.delay_seconds(BURST, 0.0) == 0.0
    assert pace.delay_seconds(100, 0.0) == pytest.approx(100 / WORK_IN_A_SECOND)
    assert pace.delay_seconds(0, 100 / WORK_IN_A_SECOND) == 0.0


def test_those_that_send_too_much_share_the_pace() -> None:
    budget = FrameBudget()
    paces = [Pace(budget) for _ in range(10)]
    for each in paces:
        each.delay_seconds(BURST, 0.0)
        each.wait()
    assert paces[0].delay_seconds(100, 0.0) == pytest.approx(10 * 100 / WORK_IN_A_SECOND)
    for each in paces[1:]:
        each.go_on()
    delay_seconds = paces[0].delay_seconds(100, 10 * 100 / WORK_IN_A_SECOND)
    assert delay_seconds == pytest.approx(100 / WORK_IN_A_SECOND)


def test_who_connects_anew_each_time_uses_up_the_bursts_of_all() -> None:
    budget = FrameBudget()
    for _ in range(int(BURSTS_OF_ALL / BURST)):
        pace = Pace(budget)
        assert pace.delay_seconds(BURST, 0.0) == 0.0
        pace.end()
    assert Pace(budget).delay_seconds(100, 0.0) == pytest.approx(100 / WORK_IN_A_SECOND)


def test_who_goes_leaves_his_burst_to_others() -> None:
    budget = FrameBudget()
    for number in range(1000):
        pace = Pace(budget)
        assert pace.delay_seconds(10, float(number)) == 0.0
        pace.end()


def test_many_connections_that_keep_below_the_pace_share_it() -> None:
    budget, seconds, work = FrameBudget(), 100, WORK_IN_A_SECOND * 0.9
    free_at = dict.fromkeys(range(32), 0.0)
    paces = [Pace(budget) for _ in free_at]
    waiting: set[int] = set()
    done = 0.0
    for second in range(seconds):
        for number in [each for each in free_at if free_at[each] <= second]:
            if number in waiting:
                waiting.remove(number)
                paces[number].go_on()
            done += work
            delay = paces[number].delay_seconds(work, float(second))
            if delay > 0:
                waiting.add(number)
                paces[number].wait()
            free_at[number] = second + delay
    # Beside the bursts: what those that wait may do, the others, and what each waits for.
    assert done <= BURSTS_OF_ALL + 2 * seconds * WORK_IN_A_SECOND + len(paces) * work


@asynccontextmanager
async def flooding(path: Path, flood: bytes) -> AsyncIterator[None]:
    """A server that answers each call after a flood of frames."""
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(path))
    socket.listen()

    async def serve(stream: trio.SocketStream) -> None:
        server = H2Connection(H2Configuration(client_side=False))
        server.initiate_connection()
        async for received in stream:
            ended = [e for e in server.receive_data(received) if isinstance(e, StreamEnded)]
            await stream.send_all(server.data_to_send())
            for event in ended:
                server.send_headers(
                    event.stream_id, [(":status", "200"), ("content-type", "application/grpc")]
                )
                await stream.send_all(server.data_to_send() + flood)
                message = bytes(cri.VersionResponse(version="v"))
                data = b"\0" + len(message).to_bytes(4, "big") + message
                server.send_data(event.stream_id, data)
                server.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
                await stream.send_all(server.data_to_send())

    async with trio.SocketListener(socket) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_flood_of_frames_is_taken_in_turns(
    rpc_loop: RpcLoop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_trusted: bool,
) -> None:
    pieces, flood = list[int](), frame(PING, b"01234567")
    feed = grpclib.protocol.Connection.feed

    def noted(self: grpclib.protocol.Connection, data: bytes) -> object:
        pieces.append(data.count(flood))
        return feed(self, data)

    monkeypatch.setattr(grpclib.protocol.Connection, "feed", noted)
    path = tmp_path / "flooding.sock"
    async with flooding(path, flood * MANY):
        channel = Channel(str(path), max_answer_bytes=None if is_trusted else 1024)
        version = await channel.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())
        channel.close()
    assert version.version == "v"
    assert sum(pieces) == MANY
    assert max(pieces) <= WORK_IN_A_TURN


@asynccontextmanager
async def deaf(path: Path) -> AsyncIterator[trio.Event]:
    """A server that floods and reads nothing; the event is set when its connection was closed."""
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(path))
    socket.listen()
    closed = trio.Event()

    async def flood(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(frame(SETTINGS))
            while True:
                await stream.send_all(frame(PING, bytes(8)) * MANY)
        closed.set()

    async with trio.SocketListener(socket) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, flood, [listener])
        yield closed
        nursery.cancel_scope.cancel()


async def test_one_who_floods_and_does_not_read_loses_the_connection(
    rpc_loop: RpcLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.rpc.frames.MAX_UNSENT_BYTES", 0)
    monkeypatch.setattr("trio_kubelet.rpc.frames.WORK_IN_A_SECOND", 1e9)
    path = tmp_path / "deaf.sock"
    async with deaf(path) as closed:
        channel = Channel(str(path), max_answer_bytes=1024)
        with trio.fail_after(60), pytest.raises(RpcError) as caught:
            await channel.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())
        assert caught.value.code is Code.UNAVAILABLE
        with trio.fail_after(60):
            await closed.wait()


async def test_a_channel_is_closed_though_the_server_reads_nothing(
    rpc_loop: RpcLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_kubelet.rpc.frames.WORK_IN_A_SECOND", 1e9)
    path, unsent = tmp_path / "deaf.sock", trio.Event()
    pause = grpclib.protocol.H2Protocol.pause_writing

    def noted(self: grpclib.protocol.H2Protocol) -> None:
        pause(self)
        unsent.set()

    monkeypatch.setattr(grpclib.protocol.H2Protocol, "pause_writing", noted)
    async with deaf(path) as closed, trio.open_nursery() as nursery:
        channel = Channel(str(path), max_answer_bytes=1024)

        async def call() -> None:
            with pytest.raises(RpcError):
                await channel.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())

        nursery.start_soon(call)
        with trio.fail_after(60):
            await unsent.wait()
            channel.close()
            await closed.wait()
