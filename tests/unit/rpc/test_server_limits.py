"""Clients that are not trusted: what they can have of a server, and what becomes of the others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from h2.connection import H2Connection
from h2.events import DataReceived, RemoteSettingsChanged, ResponseReceived, TrailersReceived
from h2.settings import SettingCodes
from trio.testing import MockClock

from tests.unit.rpc.conftest import SteeredService
from trio_kubelet.rpc import Channel, Code, RpcError, ServerLimits, serve
from trio_kubelet.rpc.loop import RpcLoop
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.rpc.stubs.v1 import ListPodResourcesRequest, PodResourcesListerStub

LIMITS = ServerLimits(
    connections=3,
    calls=2,
    request_bytes=100,
    request_seconds=5.0,
    answer_seconds=1000.0,  # Nobody waits for that but on a clock that jumps.
    unread_bytes=16 * 2**20,
)
OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = "0", "4", "8", "12", "13"
VERSION, EXEC = (f"/runtime.v1.RuntimeService/{each}" for each in ("Version", "ExecSync"))
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc+proto"),
]


@pytest.fixture
async def limited(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> AsyncIterator[Path]:
    path = tmp_path / "limited.sock"
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[str]) -> None:
            await serve([service], path, limits=LIMITS, task_status=task_status)

        await nursery.start(run)
        yield path
        nursery.cancel_scope.cancel()


class RawClient:
    """A client that sends whatever it likes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h2 = H2Connection()
        self.h2.initiate_connection()
        self.calls = 0

    async def begin(self, path: str = VERSION) -> int:
        """Begin a call, and send no request."""
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, [*HEADERS[:2], (":path", path), *HEADERS[2:]])
        await self.stream.send_all(self.h2.data_to_send())
        return number

    async def answer_headers(self) -> dict[str, str]:
        """Wait for the headers of an answer; they must end it."""
        async for received in self.stream:
            for event in self.h2.receive_data(received):
                if isinstance(event, ResponseReceived):
                    assert event.stream_ended is not None
                    headers = event.headers or ()
                    return {name.decode(): value.decode() for name, value in headers}
        raise AssertionError("the connection was closed")

    async def status(self) -> str:
        """Wait for the end of a call; its status."""
        async for received in self.stream:
            for event in self.h2.receive_data(received):
                if isinstance(event, TrailersReceived | ResponseReceived):
                    status = dict(event.headers or ()).get(b"grpc-status")
                    if status is not None:
                        return status.decode()
        raise AssertionError("the connection was closed")

    async def call(self, request: bytes, *, ends: bool = False) -> str:
        """Send these bytes as a request; the status of the answer."""
        number = await self.begin()
        self.h2.send_data(number, request, end_stream=ends)
        await self.stream.send_all(self.h2.data_to_send())
        return await self.status()

    async def ask_for(self, size: int) -> None:
        """Ask for an answer of so many bytes, and for all of it at once, in one frame."""
        large: dict[SettingCodes | int, int] = {
            SettingCodes.INITIAL_WINDOW_SIZE: 2**30,
            SettingCodes.MAX_FRAME_SIZE: 2**24 - 1,
        }
        self.h2.update_settings(large)
        self.h2.increment_flow_control_window(2**30)
        request = bytes(cri.ExecSyncRequest(timeout=size, cmd=["x"]))
        number = await self.begin(EXEC)
        self.h2.send_data(number, prefixed(len(request), request), end_stream=True)
        await self.stream.send_all(self.h2.data_to_send())

    async def answer_begins(self) -> None:
        """Read until there is something of an answer."""
        async for received in self.stream:
            if any(isinstance(event, DataReceived) for event in self.h2.receive_data(received)):
                return

    async def is_dropped(self) -> bool:
        """Read what is there; whether the connection ends before a call does."""
        try:
            return await self.status() is None
        except (trio.BrokenResourceError, AssertionError):
            return True


@asynccontextmanager
async def raw_client(path: Path) -> AsyncIterator[RawClient]:
    async with await trio.open_unix_socket(path) as stream:
        yield RawClient(stream)


def prefixed(size: int, content: bytes = b"", *, compressed: bool = False) -> bytes:
    return bytes([compressed]) + size.to_bytes(4, "big") + content


@pytest.mark.parametrize(
    ("request_", "ends", "status"),
    [
        (prefixed(0), True, OK),
        (prefixed(100, bytes(cri.VersionRequest(version="x" * 98))), True, OK),
        (prefixed(101), False, RESOURCE_EXHAUSTED),
        (prefixed(2**32 - 1, b"begin"), False, RESOURCE_EXHAUSTED),
        (prefixed(5, b"12345", compressed=True), True, UNIMPLEMENTED),
        (prefixed(50, b"cut"), True, INTERNAL),
        (b"\0\0", True, INTERNAL),
    ],
    ids=["none", "largest", "too large", "endless", "compressed", "cut", "cut prefix"],
)
async def test_a_request_has_a_limit(
    limited: Path, request_: bytes, status: str, *, ends: bool
) -> None:
    async with raw_client(limited) as client:
        with trio.fail_after(60):
            assert await client.call(request_, ends=ends) == status


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/runtime.v1.Nothing/Version", "unknown service 'runtime.v1.Nothing'"),
        (
            "/runtime.v1.RuntimeService/Fly",
            "unknown method 'Fly' for service 'runtime.v1.RuntimeService'",
        ),
        ("/", "unknown service ''"),
        ("/x" * 2000, "unknown service 'x'"),
    ],
    ids=["service", "method", "nothing", "long"],
)
async def test_a_method_that_no_contract_has_is_answered_in_trailers_alone(
    limited: Path, path: str, message: str
) -> None:
    async with raw_client(limited) as client:
        with trio.fail_after(60):
            number = await client.begin(path)
            client.h2.end_stream(number)
            await client.stream.send_all(client.h2.data_to_send())
            answer = await client.answer_headers()
            assert answer[":status"] == "200"
            assert answer["content-type"].startswith("application/grpc")
            assert answer["grpc-status"] == UNIMPLEMENTED
            assert answer["grpc-message"].startswith(message)
            assert len(answer["grpc-message"]) < 300
            assert await client.call(prefixed(0), ends=True) == OK


async def test_a_client_of_grpc_sees_that_a_method_is_not_there(limited: Path) -> None:
    channel = Channel(str(limited))
    with (
        trio.fail_after(60),
        pytest.raises(RpcError, match="unknown service 'v1\\.PodResourcesLister'") as raised,
    ):
        await channel.unary(PodResourcesListerStub.list, ListPodResourcesRequest())
    assert raised.value.code is Code.UNIMPLEMENTED


async def test_a_request_that_does_not_come_is_not_waited_for(
    autojump_clock: MockClock, limited: Path
) -> None:
    async with raw_client(limited) as client:
        begun_at = trio.current_time()
        await client.begin()
        assert await client.status() == DEADLINE_EXCEEDED
        assert trio.current_time() - begun_at == pytest.approx(LIMITS.request_seconds, abs=0.1)


async def test_a_client_that_does_not_take_its_answer_is_dropped(
    autojump_clock: MockClock, limited: Path
) -> None:
    async with raw_client(limited) as client:
        await client.ask_for(2**21)
        await trio.sleep(LIMITS.answer_seconds + 1)
        assert await client.is_dropped()


async def test_with_too_many_answers_that_nobody_reads_the_client_of_most_is_dropped(
    limited: Path,
) -> None:
    async with raw_client(limited) as hostile, raw_client(limited) as good:
        with trio.fail_after(60):
            await hostile.ask_for(10 * 2**20)
            await hostile.answer_begins()
            await good.ask_for(9 * 2**20)
            assert await good.status() == OK
            assert await hostile.is_dropped()


async def test_a_large_answer_goes_in_small_frames_beside_other_words_of_its_client(
    limited: Path,
) -> None:
    async with raw_client(limited) as client:
        with trio.fail_after(60):
            await client.ask_for(2**23)
            await client.answer_begins()
            client.h2.ping(b"whatever")
            await client.stream.send_all(client.h2.data_to_send())
            assert await client.status() == OK


async def test_a_client_is_told_how_many_calls_it_may_have(limited: Path) -> None:
    async with raw_client(limited) as client:
        await client.stream.send_all(client.h2.data_to_send())
        told = None
        with trio.fail_after(60):
            while told is None:
                for event in client.h2.receive_data(await client.stream.receive_some()):
                    assert not isinstance(event, DataReceived)
                    if isinstance(event, RemoteSettingsChanged):
                        changed = event.changed_settings.get(SettingCodes.MAX_CONCURRENT_STREAMS)
                        told = changed.new_value if changed is not None else told
        assert told == LIMITS.calls


async def test_one_connection_too_many_costs_the_oldest(limited: Path) -> None:
    request = prefixed(0)
    async with raw_client(limited) as first, raw_client(limited) as second:
        with trio.fail_after(60):
            for client in (first, second, first):
                assert await client.call(request, ends=True) == OK
            async with raw_client(limited) as third, raw_client(limited) as fourth:
                for client in (third, fourth, first):
                    assert await client.call(request, ends=True) == OK
                with pytest.raises((trio.BrokenResourceError, AssertionError)):
                    await second.call(request, ends=True)


async def test_others_are_answered_beside_a_flood(limited: Path) -> None:
    ping = b"\0\0\x08\6\0\0\0\0\0whatever"
    async with raw_client(limited) as hostile, trio.open_nursery() as nursery:

        async def flood() -> None:
            await hostile.stream.send_all(hostile.h2.data_to_send())
            while True:
                await hostile.stream.send_all(ping * 1000)

        nursery.start_soon(flood)
        channel = Channel(str(limited))
        with trio.fail_after(60):
            for _ in range(10):
                await channel.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())
        nursery.cancel_scope.cancel()
