"""What holds on a socket alone: endpoints, lost connections, and nothing left behind."""

import asyncio
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio
from h2.connection import H2Connection

from tests.unit.rpc.conftest import SteeredService
from trio_kubelet.rpc import Channel, Code, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.channel import socket_path
from trio_kubelet.rpc.loop import RpcLoop
from trio_kubelet.rpc.stubs.runtime import v1 as cri

version = cri.RuntimeServiceStub.version
status = cri.RuntimeServiceStub.status


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
        ("unix:/run/crio.sock", "/run/crio.sock"),
        ("/run/crio.sock", "/run/crio.sock"),
        ("/run/a:b.sock", "/run/a:b.sock"),
    ],
)
def test_an_endpoint_names_a_socket(endpoint: str, path: str) -> None:
    assert socket_path(endpoint) == path


@pytest.mark.parametrize(
    ("endpoint", "complaint"),
    [
        ("", "must be of the form unix:///absolute/path"),
        ("run/crio.sock", "must be of the form unix:///absolute/path"),
        ("unix://run/crio.sock", "must be of the form unix:///absolute/path"),
        ("unix:///run/", "must be of the form unix:///absolute/path"),
        ("tcp://127.0.0.1:1", "only unix sockets are supported"),
        ("npipe:////./pipe/x", "only unix sockets are supported"),
        ("unix:///" + "a" * 107, "path is longer than 107 bytes"),
        ("unix:///run/\0.sock", "path has a zero byte"),
    ],
)
def test_a_malformed_endpoint_is_refused(endpoint: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        socket_path(endpoint)
    assert repr(endpoint) in str(caught.value)


async def test_a_channel_needs_the_loop() -> None:
    with pytest.raises(RuntimeError, match="open_rpc_loop"):
        Channel("/run/x.sock")


async def test_nobody_at_the_endpoint_is_unavailable(rpc_loop: RpcLoop, tmp_path: Path) -> None:
    channel = Channel(str(tmp_path / "nobody.sock"))
    with pytest.raises(RpcError) as caught:
        await channel.unary(version, cri.VersionRequest())
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == (
        f"cannot connect to {tmp_path}/nobody.sock: No such file or directory"
    )


async def test_a_peer_that_accepts_and_says_nothing_is_left_at_the_deadline(
    rpc_loop: RpcLoop, tmp_path: Path
) -> None:
    path = str(tmp_path / "mute.sock")
    with sockets.socket(sockets.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        with pytest.raises(RpcError) as caught:
            await Channel(path).unary(version, cri.VersionRequest(), deadline_seconds=0.05)
    assert caught.value.code is Code.DEADLINE_EXCEEDED


@asynccontextmanager
async def running(service: SteeredService, path: Path) -> AsyncIterator[trio.CancelScope]:
    """A server on a path; cancelling the scope stops it, and nothing else."""
    scope = trio.CancelScope()

    async def run(task_status: trio.TaskStatus[str]) -> None:
        with scope:
            await serve([service], path, task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        yield scope
        scope.cancel()


async def test_a_call_under_way_when_the_server_goes_is_unavailable_and_the_next_connects(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "restarted.sock"
    channel = Channel(str(path))
    failed = trio.Event()

    async def call() -> None:
        with pytest.raises(RpcError) as caught:
            await channel.unary(status, cri.StatusRequest())
        assert caught.value.code is Code.UNAVAILABLE
        failed.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, running(service, path) as server:
            nursery.start_soon(call)
            await service.hanging.wait()
            server.cancel()
            await failed.wait()
        with pytest.raises(RpcError) as caught:
            await channel.unary(version, cri.VersionRequest())
        assert caught.value.code is Code.UNAVAILABLE
        async with running(service, path):
            answer = await channel.unary(version, cri.VersionRequest(version="again"))
    assert answer.version == "again"


async def test_a_stream_sees_the_server_go(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    stream = cri.RuntimeServiceStub.get_container_events
    with trio.fail_after(60):
        async with (
            running(service, path) as server,
            Channel(str(path)).stream(stream, cri.GetEventsRequest()) as events,
        ):
            assert [(await anext(events)).container_id for _ in range(3)] == ["0", "1", "2"]
            server.cancel()
            with pytest.raises(RpcError) as caught:
                await anext(events)
    assert caught.value.code is Code.UNAVAILABLE


async def test_many_cancelled_calls_leave_no_stream_and_no_task(
    rpc_loop: RpcLoop, channel: Channel, service: SteeredService
) -> None:
    async def give_up(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await channel.unary(status, cri.StatusRequest())

    async def let_deadline_pass(seconds: float) -> None:
        with pytest.raises(RpcError):
            await channel.unary(status, cri.StatusRequest(), deadline_seconds=seconds)

    async def leave_stream() -> None:
        async with channel.stream(
            cri.RuntimeServiceStub.get_container_events, cri.GetEventsRequest()
        ) as events:
            await anext(events)

    await channel.unary(version, cri.VersionRequest())
    tasks_before = len(asyncio.all_tasks(rpc_loop.asyncio_loop))
    for _ in range(5):
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(give_up, number / 1000)
                nursery.start_soon(let_deadline_pass, number / 1000)
                nursery.start_soon(leave_stream)
    await channel.unary(version, cri.VersionRequest())
    with trio.fail_after(60):
        while service.hanging_now or len(asyncio.all_tasks(rpc_loop.asyncio_loop)) > tasks_before:
            await trio.lowlevel.checkpoint()
    protocol = channel._grpc._protocol
    assert protocol is not None
    assert protocol.processor.streams == {}
    assert protocol.connection._connection.open_outbound_streams == 0


async def test_a_closed_channel_stays_closed(channel: Channel) -> None:
    await channel.unary(version, cri.VersionRequest())
    channel.close()
    channel.close()
    with pytest.raises(RpcError, match="is closed") as caught:
        await channel.unary(version, cri.VersionRequest())
    assert caught.value.code is Code.UNAVAILABLE
    with pytest.raises(RpcError, match="is closed"):
        async with channel.stream(
            cri.RuntimeServiceStub.get_container_events, cri.GetEventsRequest()
        ):
            pass


async def test_a_shielded_call_ends_before_the_loop_does(
    service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    answered = trio.Event()

    async def runtime(task_status: trio.TaskStatus[None]) -> None:
        """Outlives the agent, as a runtime does, until it has answered."""
        with trio.CancelScope(shield=True):
            async with running(service, path):
                task_status.started()
                await answered.wait()

    async def shielded_call() -> None:
        with trio.CancelScope(shield=True), trio.fail_after(60):
            await Channel(str(path)).unary(version, cri.VersionRequest(version="last"))
            answered.set()

    with trio.CancelScope() as agent:
        async with open_rpc_loop(), trio.open_nursery() as nursery:
            await nursery.start(runtime)
            nursery.start_soon(shielded_call)
            agent.cancel()
    assert answered.is_set()


async def test_a_call_after_the_end_of_the_loop_is_unavailable(tmp_path: Path) -> None:
    async with open_rpc_loop():
        channel = Channel(str(tmp_path / "s.sock"))
    with pytest.raises(RpcError, match="is closed") as caught:
        await channel.unary(version, cri.VersionRequest())
    assert caught.value.code is Code.UNAVAILABLE


async def test_an_error_of_the_body_of_the_loop_passes_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with open_rpc_loop():
            raise LookupError("mine")


async def test_a_fault_in_a_callback_is_logged_and_the_loop_goes_on(
    rpc_loop: RpcLoop, channel: Channel
) -> None:
    def fault() -> None:
        raise ZeroDivisionError("fault")

    with structlog.testing.capture_logs() as logs:
        rpc_loop.asyncio_loop.call_soon(fault)
        await channel.unary(version, cri.VersionRequest())
    assert [entry["event"] for entry in logs] == ["rpc event loop failed"]
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)


async def test_the_socket_is_for_owner_and_group(socket: str) -> None:
    assert (await trio.Path(socket).stat()).st_mode & 0o777 == 0o660


async def test_the_socket_file_goes_with_its_server(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    async with running(service, path):
        assert path.is_socket()
    assert not path.exists()


async def test_a_stale_socket_file_is_replaced(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "stale.sock"
    with sockets.socket(sockets.AF_UNIX) as stale:
        stale.bind(str(path))
    async with running(service, path):
        answer = await Channel(str(path)).unary(version, cri.VersionRequest(version="v"))
    assert answer.version == "v"


async def test_a_socket_that_somebody_listens_on_is_left_alone(
    socket: str, channel: Channel, service: SteeredService
) -> None:
    with pytest.raises(OSError, match="another process listens on this socket"):
        await serve([service], socket)
    assert (await channel.unary(version, cri.VersionRequest(version="v"))).version == "v"


async def test_a_file_that_is_no_socket_is_left_alone(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FileExistsError, match="is not a socket"):
        await serve([service], path)
    assert path.read_text() == "data"


async def test_a_server_does_not_remove_the_socket_of_its_successor(
    rpc_loop: RpcLoop, service: SteeredService, tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    async with running(service, path):
        path.unlink()
        with sockets.socket(sockets.AF_UNIX) as successor:
            successor.bind(str(path))
    assert path.is_socket()


async def test_a_client_that_goes_away_cancels_its_calls(
    channel: Channel, service: SteeredService
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with pytest.raises(RpcError, match="connection lost"):
                    await channel.unary(status, cri.StatusRequest())

            await service.hanging.wait()
            channel.close()
        await service.cancelled.wait()


async def test_a_client_may_have_many_calls_under_way_before_it_has_heard_any_limit(
    socket: str, service: SteeredService
) -> None:
    client = H2Connection()
    client.initiate_connection()
    for number in range(150):
        stream_id = 2 * number + 1
        path = "/runtime.v1.RuntimeService/Status"
        client.send_headers(
            stream_id,
            [
                *((":method", "POST"), (":scheme", "http"), (":path", path)),
                *((":authority", "x"), ("te", "trailers"), ("content-type", "application/grpc")),
            ],
        )
        client.send_data(stream_id, b"\0\0\0\0\0", end_stream=True)
    async with await trio.open_unix_socket(socket) as stream:
        await stream.send_all(client.data_to_send())
        with trio.fail_after(60):
            while service.hanging_now < 150:
                await trio.lowlevel.checkpoint()
