"""A resize of running containers and their pod's cgroup: the order, refusals, kills in between."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.unit.runtime.hollow_nodes import POD, Node, node
from trio_kubelet.errors import PreparationError
from trio_kubelet.hollow.faults import CallFault
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.resources.pod_cgroups import MemoryLimitDecrease, NoCgroups
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.lifecycle.allocations import ACTUATED, ALLOCATED, Allocations
from trio_kubelet.runtime.lifecycle.resizer import NOT_RECORDED
from trio_kubelet.runtime.lifecycle.resource_records import parsed, record_of

MIB = 1 << 20
UID = POD.metadata.uid


def asking(memory: str = "64Mi", cpu: str = "1", *, restarts: bool = False) -> Pod:
    """A pod of two containers, of which the first one has these limits."""
    policy = "RestartContainer" if restarts else "NotRequired"
    resources = {
        "limits": {"cpu": cpu, "memory": memory},
        "requests": {"cpu": "100m", "memory": "16Mi"},
    }
    containers = [
        {
            "name": "c",
            "image": "busybox",
            "resources": resources,
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}],
        },
        {"name": "d", "image": "busybox"},
    ]
    spec = {"containers": containers, "restartPolicy": "Always"}
    return decode(Pod, {"metadata": encode(POD.metadata), "spec": spec})


class Cgroups(NoCgroups):
    """Notes what the container has when something is done to the cgroup of its pod."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, int]] = []
        self.memory_mib: Callable[[], int] = int
        self.decrease: MemoryLimitDecrease | None = None
        self.refusal = ""

    async def memory_limit_decrease(self, pod: Pod) -> MemoryLimitDecrease | None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        return self.decrease

    async def grow(self, pod: Pod, resource: str) -> None:
        await trio.lowlevel.checkpoint()
        self.steps.append(("grow", resource, self.memory_mib()))
        if self.refusal:
            raise PreparationError("ResizeError", self.refusal)

    async def finish_resize(self, pod: Pod, resource: str) -> None:
        await trio.lowlevel.checkpoint()
        self.steps.append(("finish", resource, self.memory_mib()))


def instances(at: Node, name: str = "c") -> list[HollowContainer]:
    return [each for each in at.runtime.containers if each.config.metadata.name == name]


def running(at: Node, name: str = "c") -> HollowContainer:
    runs = cri.ContainerState.CONTAINER_RUNNING
    (found,) = (each for each in instances(at, name) if each.state is runs)
    return found


def restarts_of(at: Node) -> int:
    """How often the container has restarted; dead ones may have been removed."""
    return running(at).config.metadata.attempt


def limits(at: Node) -> tuple[int, int]:
    """The memory limit in MiB and the CPU quota of the container that runs."""
    given = running(at).resources
    return given.memory_limit_in_bytes // MIB, given.cpu_quota


async def admitted(at: Node, pod: Pod) -> None:
    """The pod runs with what it asked for."""
    at.pods.allocations.allocate(pod)
    await at.sync(pod)


async def resized(at: Node, pod: Pod) -> str:
    """The pod is allocated other resources and synced; why that did not work."""
    at.pods.allocations.resize(pod)
    return (await at.sync(pod)).resize_error


async def test_a_container_is_changed_up_and_down_while_it_runs(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with node(tmp_path) as at:
        await admitted(at, asking())
        before = running(at)
        assert await resized(at, asking("128Mi", "2")) == ""
        assert limits(at) == (128, 200_000)
        assert at.pods.allocations.is_actuated(UID)
        # The hollow runtime says that half of the limit is used: 64 MiB.
        assert await resized(at, asking("96Mi", "500m")) == ""
        assert limits(at) == (96, 50_000)
        assert running(at) is before


async def test_the_pods_cgroup_grows_before_its_containers_and_shrinks_after_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cgroups = Cgroups()
    async with node(tmp_path, cgroups=cgroups) as at:
        await admitted(at, asking())
        cgroups.memory_mib = lambda: limits(at)[0]
        await resized(at, asking("128Mi"))
        await resized(at, asking("96Mi"))
    for before, after in ((64, 128), (128, 96)):
        assert cgroups.steps[:2] == [("grow", "memory", before), ("finish", "memory", after)]
        assert cgroups.steps[2:4] == [("grow", "cpu", after), ("finish", "cpu", after)]
        del cgroups.steps[:4]


async def test_no_memory_limit_goes_below_what_is_used_until_less_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cgroups, smaller = Cgroups(), asking("16Mi", "2")
    async with node(tmp_path, cgroups=cgroups) as at:
        await admitted(at, asking())
        cgroups.decrease = MemoryLimitDecrease(limit_bytes=16 * MIB, usage_bytes=40 * MIB)
        assert await resized(at, smaller) == (
            "cannot decrease memory limits: "
            f"[attempting to set pod memory limit ({16 * MIB}) below current usage ({40 * MIB}), "
            f'attempting to set container "c" memory limit ({16 * MIB}) below current usage '
            f"({32 * MIB})]"
        )
        assert [resource for _, resource, _ in cgroups.steps] == ["cpu", "cpu"]
        assert limits(at) == (64, 200_000)
        assert not at.pods.allocations.is_actuated(UID)
        cgroups.decrease = MemoryLimitDecrease(limit_bytes=33 * MIB, usage_bytes=20 * MIB)
        assert await resized(at, asking("33Mi", "2")) == ""
        assert limits(at) == (33, 200_000)


async def test_a_container_whose_policy_says_so_restarts_once_with_what_is_allocated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    larger = asking("128Mi", restarts=True)
    async with node(tmp_path) as at:
        await admitted(at, asking(restarts=True))
        before, other, containers = running(at), running(at, "d"), at.open()
        at.pods.allocations.resize(larger)
        await at.sync(larger, containers)
        await at.sync(larger, containers)
        assert running(at) is not before
        assert restarts_of(at) == 1
        assert running(at, "d") is other
        assert limits(at)[0] == 128
        assert at.pods.allocations.is_actuated(UID)
        causes = [e.cause for e in at.journal.entries(POD.metadata.key) if e.event == "Killing"]
        assert causes == ["Container c resize requires restart"]


async def test_a_container_that_has_restarted_does_so_once_though_its_pod_could_not_be_resized(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cgroups, larger = Cgroups(), asking("128Mi", restarts=True)
    async with node(tmp_path, cgroups=cgroups) as at:
        await admitted(at, asking(restarts=True))
        cgroups.refusal = "no"
        assert await resized(at, larger) == "no"
        assert (await at.sync(larger)).resize_error == "no"
        assert limits(at)[0] == 128
        cgroups.refusal = ""
        assert (await at.sync(larger)).resize_error == ""
        assert restarts_of(at) == 1
        assert at.pods.allocations.is_actuated(UID)


async def test_what_the_runtime_or_the_kernel_refuses_is_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cgroups, larger = Cgroups(), asking("128Mi")
    async with node(tmp_path, cgroups=cgroups) as at:
        await admitted(at, asking())
        cgroups.refusal = "no"
        assert await resized(at, larger) == "no"
        assert limits(at)[0] == 64
        cgroups.refusal = ""
        error = RpcError(Code.UNKNOWN, "not now")
        at.faults.add("UpdateContainerResources", CallFault(error=error))
        outcome = await at.sync(larger)
        assert (outcome.resize_error, outcome.failed) == ("not now", True)
        assert (await at.sync(larger)).resize_error == ""
        assert limits(at)[0] == 128


@pytest.mark.parametrize("code", [Code.UNIMPLEMENTED, Code.NOT_FOUND])
async def test_a_runtime_that_cannot_be_told_of_the_pods_sums_is_no_obstacle(
    tmp_path: Path, autojump_clock: MockClock, code: Code
) -> None:
    async with node(tmp_path) as at:
        await admitted(at, asking())
        at.faults.add("UpdatePodSandboxResources", CallFault(error=RpcError(code, "no")))
        assert await resized(at, asking("128Mi", "2")) == ""
        assert limits(at) == (128, 200_000)


async def test_a_runtime_may_refuse_the_pods_sums_before_anything_is_changed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cgroups, larger = Cgroups(), asking("128Mi", "2")
    async with node(tmp_path, cgroups=cgroups) as at:
        await admitted(at, asking())
        refusal = RpcError(Code.UNKNOWN, "a plugin says no")
        at.faults.add("UpdatePodSandboxResources", CallFault(error=refusal))
        assert await resized(at, larger) == "a plugin says no"
        assert (limits(at), cgroups.steps) == ((64, 100_000), [])
        assert (await at.sync(larger)).resize_error == ""
        (sandbox,) = at.runtime.sandboxes
        told = sandbox.config.linux.resources
        assert (told.memory_limit_in_bytes, told.cpu_quota) == (128 * MIB, 200_000)


async def test_no_container_restarts_for_what_the_runtime_refuses(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    larger = asking("128Mi", restarts=True)
    refusal = CallFault(error=RpcError(Code.UNKNOWN, "a plugin says no"))
    async with node(tmp_path) as at:
        await admitted(at, asking(restarts=True))
        before = running(at)
        for _ in range(2):  # Before anything stops, and when the rest is resized.
            at.faults.add("UpdatePodSandboxResources", refusal)
        assert await resized(at, larger) == "a plugin says no"
        assert running(at) is before
        while (await at.sync(larger)).failed:
            pass
        assert (limits(at)[0], restarts_of(at)) == (128, 1)


async def test_cpu_is_changed_and_recorded_though_the_runtime_refuses_the_memory(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    larger = asking("128Mi", "2")
    async with node(tmp_path) as at:
        await admitted(at, asking())
        at.faults.add("UpdateContainerResources", CallFault(error=RpcError(Code.UNKNOWN, "no")))
        assert await resized(at, larger) == "no"
        assert limits(at) == (64, 200_000)
        (given,) = parsed((tmp_path / ACTUATED).read_text()).values()
        assert given["ContainerResources"]["c"]["limits"] == {"cpu": "2", "memory": "64Mi"}
        assert (await at.sync(larger)).resize_error == ""
        assert limits(at) == (128, 200_000)
        assert at.pods.allocations.is_actuated(UID)


@pytest.mark.parametrize("restarts", [False, True])
async def test_nothing_is_changed_before_the_allocation_is_on_the_disk(
    tmp_path: Path, autojump_clock: MockClock, restarts: bool
) -> None:
    larger = asking("128Mi", restarts=restarts)
    async with node(tmp_path) as at:
        await admitted(at, asking(restarts=restarts))
        before = running(at)
        (tmp_path / ALLOCATED).unlink(missing_ok=True)
        (tmp_path / ALLOCATED).mkdir()
        assert await resized(at, larger) == NOT_RECORDED
        assert limits(at)[0] == 64
        assert running(at) is before
        (tmp_path / ALLOCATED).rmdir()
        assert (await at.sync(larger)).resize_error == ""
        assert limits(at)[0] == 128


class Killer(trio.abc.Instrument):
    """Ends the work of an agent at one of the steps of its task."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.scope = trio.CancelScope()
        self.task: trio.lowlevel.Task | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self.task:
            return
        self.steps -= 1
        if self.steps <= 0:
            self.scope.cancel()

    async def run(self, at: Node, pod: Pod) -> None:
        self.task = trio.lowlevel.current_task()
        trio.lowlevel.add_instrument(self)
        try:
            with self.scope:
                await at.sync(pod)
        finally:
            trio.lowlevel.remove_instrument(self)


async def started_anew(at: Node, root: Path) -> Node:
    """Another agent at the same runtime, which knows what is on the disk."""
    allocations = Allocations(root, trio.CapacityLimiter(1))
    await allocations.load()
    resizer = evolve(at.pods.resizer, allocations=allocations)
    return evolve(at, pods=evolve(at.pods, allocations=allocations, resizer=resizer))


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_agent_that_is_killed_between_any_two_steps_ends_in_the_same_state(
    tmp_path: Path, autojump_clock: MockClock, restarts: bool
) -> None:
    smaller, larger = (asking(memory, restarts=restarts) for memory in ("64Mi", "128Mi"))
    was_cut_short, steps = True, 0
    while was_cut_short:
        steps += 1
        root = tmp_path / str(steps)
        root.mkdir()
        async with node(root) as at:
            await admitted(at, smaller)
            at.pods.allocations.resize(larger)
            await at.pods.allocations.keep()
            killer = Killer(steps)
            await killer.run(at, larger)
            was_cut_short = killer.scope.cancelled_caught
            second = await started_anew(at, root)
            second.pods.allocations.allocate(larger, was_admitted=True)
            while (await second.sync(larger)).failed:
                pass
            assert limits(second)[0] == 128
            assert restarts_of(second) == (1 if restarts else 0)
            for name in (ALLOCATED, ACTUATED):
                assert parsed((root / name).read_text()) == {UID: record_of(larger)}
    assert steps > 10
