"""What is read out of the runtime's description of a container, and who is looked at when."""

from collections import Counter

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import HollowOptions, Latencies, open_hollow_runtime
from trio_kubelet.rpc import MOST_MESSAGE_CHARACTERS, InProcess
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime import inspection
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.inspection import (
    LOOKS_OF_NAMESPACE,
    MAX_GROUPS_KEPT,
    PodInspector,
    observed_container,
)
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (cri.Signal.RUNTIME_DEFAULT, ""),
        (cri.Signal.SIGTERM, "SIGTERM"),
        (cri.Signal.SIGRTMINPLUS1, "SIGRTMIN+1"),
        (cri.Signal.SIGRTMAXMINUS2, "SIGRTMAX-2"),
        (9999, ""),
    ],
)
def test_the_stop_signal_has_the_name_that_the_api_gives_it(number: int, name: str) -> None:
    sent = cri.ContainerStatus(stop_signal=number)  # type: ignore[arg-type]
    told = cri.ContainerStatus().parse(bytes(sent))
    assert observed_container(told, "sandbox").stop_signal == name


def test_few_of_a_containers_groups_are_kept() -> None:
    user = cri.LinuxContainerUser(uid=1, gid=2, supplemental_groups=list(range(65_536)))
    told = cri.ContainerStatus(user=cri.ContainerUser(linux=user))
    kept = observed_container(told, "sandbox").user
    assert kept is not None
    assert kept.supplemental_groups == tuple(range(MAX_GROUPS_KEPT))


def test_what_the_runtime_says_of_a_container_is_cut() -> None:
    """It may repeat a command of megabytes. That of a start that was cut off is told by its end."""
    exited = cri.ContainerState(cri.ContainerState.CONTAINER_EXITED)
    text = "failed to start shim: start failed: " * 100_000
    told = cri.ContainerStatus(state=exited, message=f"{text}: no such file")
    cut_off = cri.ContainerStatus(state=exited, message=f"{text}: signal: killed: unknown")
    seen, seen_cut_off = (observed_container(each, "sandbox") for each in (told, cut_off))
    assert (seen.state, seen.message) == (ObservedState.EXITED, text[:MOST_MESSAGE_CHARACTERS])
    assert seen_cut_off.state is ObservedState.CREATED


async def test_pods_of_a_namespace_are_looked_at_in_turns_and_hold_up_no_other(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[float, str]] = []

    async def look(uid: str, namespace: str) -> None:
        await inspector.inspect(
            ObservedPod(uid=uid, name=uid, namespace=namespace, observed_at=0.0)
        )
        seen.append((trio.current_time(), namespace))

    options = HollowOptions(latencies=Latencies(list=1.0))
    async with open_hollow_runtime(TrioClock(), options) as runtime:
        inspector = PodInspector(client=RuntimeClient(InProcess(runtime)))
        async with trio.open_nursery() as nursery:
            for number in range(2 * LOOKS_OF_NAMESPACE):
                nursery.start_soon(look, f"u{number}", "many")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(look, "u", "good")
    assert sorted(seen) == [
        (1, "good"),
        *[(1, "many")] * LOOKS_OF_NAMESPACE,
        *[(2, "many")] * LOOKS_OF_NAMESPACE,
    ]


class AnsweringRuntime:
    """Has a pod of one sandbox with many containers; each answer takes a turn."""

    def __init__(self, containers: int) -> None:
        self._ids = [f"c{number}" for number in range(containers)]

    async def list_pod_sandbox(
        self, request: cri.ListPodSandboxRequest
    ) -> cri.ListPodSandboxResponse:
        return cri.ListPodSandboxResponse(items=[cri.PodSandbox(id="s")])

    async def list_containers(
        self, request: cri.ListContainersRequest
    ) -> cri.ListContainersResponse:
        containers = [cri.Container(id=each, pod_sandbox_id="s") for each in self._ids]
        return cri.ListContainersResponse(containers=containers)

    async def pod_sandbox_status(
        self, request: cri.PodSandboxStatusRequest
    ) -> cri.PodSandboxStatusResponse:
        return cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(id="s"))

    async def container_status(
        self, request: cri.ContainerStatusRequest
    ) -> cri.ContainerStatusResponse:
        await trio.lowlevel.checkpoint()
        metadata = cri.ContainerMetadata(name=request.container_id)
        status = cri.ContainerStatus(id=request.container_id, metadata=metadata)
        return cri.ContainerStatusResponse(status=status)


class Turns(trio.abc.Instrument):
    """Counts the turns of all tasks."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_hundreds_of_containers_are_not_read_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, read_in = Turns(), list[int]()

    def read(status: cri.ContainerStatus, sandbox_id: str) -> ObservedContainer:
        read_in.append(turns.count)
        return observed_container(status, sandbox_id)

    monkeypatch.setattr(inspection, "observed_container", read)
    inspector = PodInspector(client=RuntimeClient(InProcess(AnsweringRuntime(500))))
    trio.lowlevel.add_instrument(turns)
    try:
        pod = await inspector.inspect(ObservedPod(uid="u", name="p", namespace="n", observed_at=0))
        ended_in = turns.count
    finally:
        trio.lowlevel.remove_instrument(turns)
    assert len(pod.containers) == len(read_in) == 500
    assert max(Counter(read_in).values()) == 1
    assert ended_in > max(read_in), "what follows has a turn of its own"
