"""Lists that the runtime sends in many messages, where the feature gate asks for them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from tests.trio_clock import TrioClock
from tests.turns import making_test_data
from tests.unit.hollow.conftest import Simulated, simulate
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.gates import resolve
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.hollow import CallFault, ScriptedFaults
from trio_kubelet.hollow.host import hollow_host
from trio_kubelet.hollow.lists import ENTRIES_OF_A_PIECE
from trio_kubelet.node.machine import read_machine
from trio_kubelet.rpc import Channel, Code, InProcess, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient

Ask = Callable[[RuntimeClient], Awaitable[Sequence[Any]]]

LISTS: dict[str, Ask] = {
    "sandboxes": lambda client: client.list_pod_sandboxes(),
    "containers": lambda client: client.list_containers(),
    "container statistics": lambda client: client.list_container_stats(),
    "sandbox statistics": lambda client: client.list_pod_sandbox_stats(),
    "images": lambda client: client.list_images(),
}
MEBIBYTE = "x" * 2**20
FULL = 11_000
LONG_LABELS = {f"label-{number}": "x" * 150 for number in range(10)}


class CallLog(InProcess):
    """Keeps the names of the calls."""

    def __init__(self, *services: object) -> None:
        super().__init__(*services)
        self.calls: list[str] = []

    async def unary_raw(self, method: Any, *arguments: Any, **options: Any) -> bytes:
        self.calls.append(method.__name__)
        return await super().unary_raw(method, *arguments, **options)

    async def gather_raw(self, method: Any, *arguments: Any, **options: Any) -> bytes:
        self.calls.append(method.__name__)
        return await super().gather_raw(method, *arguments, **options)


async def some_pods(node: Simulated, count: int = 3) -> None:
    for number in range(count):
        pod = await node.run_pod(f"pod-{number}")
        await node.start(await node.create(pod, of=f"pod-{number}"))


@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
async def test_a_list_is_the_same_as_a_stream(ask: Ask) -> None:
    async with simulate(shuffle=False) as node:
        with making_test_data():
            await some_pods(node, ENTRIES_OF_A_PIECE + 1)
        transport = CallLog(node.runtime)
        streamed = await ask(RuntimeClient(transport, streams_lists=True))
        (call,) = transport.calls
        assert call.startswith("stream_")
        whole = await ask(RuntimeClient(InProcess(node.runtime)))
        assert [type(entry) for entry in streamed] == [type(entry) for entry in whole]
        assert {identity(entry) for entry in streamed} == {identity(entry) for entry in whole}


def identity(entry: Any) -> str:
    """The id of an entry; statistics have it in their attributes."""
    return str(getattr(entry, "attributes", entry).id)


@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
async def test_no_list_is_a_stream_unless_asked_for(ask: Ask) -> None:
    async with simulate() as node:
        transport = CallLog(node.runtime)
        await ask(RuntimeClient(transport))
        (call,) = transport.calls
        assert call.startswith("list_")


@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
async def test_a_runtime_without_streams_is_asked_for_one_once(ask: Ask) -> None:
    async with simulate(has_list_streams=False) as node:
        with making_test_data():
            await some_pods(node)
        transport = CallLog(node.runtime)
        client = RuntimeClient(transport, streams_lists=True)
        with capture_logs() as logs:
            assert await ask(client)
            assert await ask(client)
        stream, *others = transport.calls
        assert stream.startswith("stream_")
        assert len(others) == 2
        assert all(call.startswith("list_") for call in others)
        assert [entry["event"] for entry in logs] == ["runtime does not stream this list"]


async def test_a_list_that_did_not_change_is_the_same_value() -> None:
    async with simulate(shuffle=True) as node:
        with making_test_data():
            await some_pods(node)
        client = RuntimeClient(InProcess(node.runtime), streams_lists=True)
        for _ in range(10):
            before = await client.list_containers()
        # Each entry has a few encodings, all of which are known by now.
        after = await client.list_containers()
        assert {each.id for each in after} == {each.id for each in before}


async def test_a_stream_that_breaks_is_no_list_and_is_asked_for_again() -> None:
    faults = ScriptedFaults()
    async with simulate(faults=faults) as node:
        with making_test_data():
            await some_pods(node)
        transport = CallLog(node.runtime)
        client = RuntimeClient(transport, streams_lists=True)
        faults.add("StreamContainers", CallFault(error=RpcError(Code.UNAVAILABLE, "gone")))
        with pytest.raises(RpcError, match="gone"):
            await client.list_containers()
        assert len(await client.list_containers()) == 3
        assert transport.calls == ["stream_containers", "stream_containers"]


async def test_a_runtime_that_goes_down_breaks_the_stream() -> None:
    async with simulate() as node:
        with making_test_data():
            await some_pods(node, ENTRIES_OF_A_PIECE + 1)
        pieces = node.runtime.stream_containers(cri.StreamContainersRequest())
        assert len((await anext(pieces)).containers) == ENTRIES_OF_A_PIECE
        node.runtime.go_down()
        with pytest.raises(RpcError) as caught:
            await anext(pieces)
        assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("is_on", "call"), [(True, "stream_containers"), (False, "list_containers")]
)
async def test_the_gate_decides_how_the_agent_asks(is_on: bool, call: str, tmp_path: Path) -> None:
    with making_test_data():
        machine = read_machine(tmp_path)
    settings = Settings(
        configuration=KubeletConfiguration(pod_logs_dir=str(tmp_path / "logs"), resolv_conf=""),
        options=NodeOptions(root_dir=str(tmp_path / "kubelet"), hollow=True),
        gates=resolve({"CRIListStreaming": is_on}).gates,
    )
    async with simulate() as node:
        transport = CallLog(node.runtime)
        parts = NodeParts(settings, TrioClock(), hollow_host(transport, machine))
        assert await parts.client.list_containers() == ()
    assert transport.calls == [call]


class FullRuntime:
    """Has 11,000 containers, whose list is longer than a message may be; a hundred in each."""

    def __init__(self) -> None:
        ids = (f"{number:064x}" for number in range(FULL))
        containers = [cri.Container(id=each, labels=LONG_LABELS) for each in ids]
        pieces = (containers[first : first + 100] for first in range(0, FULL, 100))
        self.pieces = [cri.StreamContainersResponse(containers=piece) for piece in pieces]

    async def stream_containers(
        self, _request: cri.StreamContainersRequest
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        for piece in self.pieces:
            yield piece


async def test_eleven_thousand_containers_come_whole_and_hold_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "runtime.sock"
    with making_test_data():
        runtime = FullRuntime()
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        await nursery.start(serve, [runtime], path)
        client = RuntimeClient(Channel(str(path)), streams_lists=True)
        found = await client.list_containers()
        assert [int(each.id, 16) for each in found] == list(range(FULL))
        assert all(each.labels == LONG_LABELS for each in found)
        assert await client.list_containers() is found
        changed = runtime.pieces[50].containers[7]
        changed.state = cri.ContainerState(cri.ContainerState.CONTAINER_EXITED)
        again = await client.list_containers()
        assert [new.id for new, old in zip(again, found, strict=True) if new is not old] == [
            changed.id
        ]
        nursery.cancel_scope.cancel()


class CrowdedRuntime:
    """Has 20 containers of a mebibyte, which no single message holds."""

    async def stream_containers(
        self, _request: cri.StreamContainersRequest
    ) -> AsyncIterator[cri.StreamContainersResponse]:
        for number in range(20):
            container = cri.Container(id=f"{number:064x}", image_ref=MEBIBYTE)
            yield cri.StreamContainersResponse(containers=[container])


async def test_a_list_that_is_longer_than_a_message_comes_whole() -> None:
    client = RuntimeClient(InProcess(CrowdedRuntime()), streams_lists=True)
    with making_test_data():
        found = await client.list_containers()
    assert [each.id for each in found] == [f"{number:064x}" for number in range(20)]
    assert await client.list_containers() is found
