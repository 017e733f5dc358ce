"""CPUs that go offline and come back while the agent runs, told by the folder of a machine."""

from collections.abc import Collection
from pathlib import Path

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs

from tests.unit.resource_managers.machines import SMALL, Shape, managers_of, write_machine
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.cpu_sets import parsed_cpus
from trio_kubelet.resource_managers.cpu_watch import CpuWatch, changed_topology
from trio_kubelet.resource_managers.machine_topology import read_topology
from trio_kubelet.resource_managers.pod_level import PodLevel


class Machine:
    """The small machine, of which CPU 0 is reserved, and what its pods have."""

    def __init__(self, sysfs: Path, *, pod_level: PodLevel = PodLevel.SHARED) -> None:
        self.sysfs = sysfs
        self.pods: list[Pod] = []
        write_machine(sysfs, SMALL)
        self.managers: ResourceManagers = managers_of(
            static_cpu_policy(
                read_topology(sysfs, 1),
                CpuPolicyOptions(),
                reserved_cpus="0",
                reserved_milli=0,
                pod_level=pod_level,
            ),
            sysfs,
            name="best-effort",
            by_pod=pod_level is PodLevel.BY_POD,
            pod_level=pod_level,
        )

    def admit(self, pod: Pod) -> None:
        assert self.managers.reserve(pod, lambda _uid: False) is None
        self.pods.append(pod)

    def switch_off(self, *cpus: int) -> None:
        """Let these be offline, and no others."""
        write_online(self.sysfs, SMALL, cpus)
        policy = self.managers.cpus.policy
        assert policy is not None
        topology = changed_topology(self.sysfs, policy.topology.all)
        assert topology is not None
        self.managers.adopt(topology, self.pods)

    def cpus(self, uid: str, container: str = "c0") -> str:
        return self.managers.placement(uid, container).cpuset_cpus

    @property
    def shared(self) -> str:
        return self.cpus("nobody")


def write_online(sysfs: Path, shape: Shape, offline: Collection[int]) -> None:
    write_machine(sysfs, evolve(shape, offline=tuple(offline)))


def test_a_container_whose_cpu_goes_has_another_and_others_keep_theirs(tmp_path: Path) -> None:
    at = Machine(tmp_path)
    at.admit(a_pod("u", "2"))
    at.admit(a_pod("v", "2"))
    assert (at.cpus("u"), at.cpus("v"), at.shared) == ("1,5", "2,6", "0,3-4,7")
    with capture_logs() as logs:
        at.switch_off(5)
    assert (at.cpus("u"), at.cpus("v"), at.shared) == ("1,4", "2,6", "0,3,7")
    assert [each["event"] for each in logs] == ["CPUs went offline", "exclusive CPUs assigned"]
    assert (logs[0]["cpus"], logs[0]["held"]) == ("5", "5")
    at.switch_off()
    assert (at.cpus("u"), at.cpus("v"), at.shared) == ("1,4", "2,6", "0,3,5,7")


def test_where_there_are_no_others_a_container_keeps_what_is_left_until_they_come(
    tmp_path: Path,
) -> None:
    at = Machine(tmp_path)
    at.admit(a_pod("u", "4"))
    at.admit(a_pod("v", "3"))
    assert (at.cpus("u"), at.cpus("v"), at.shared) == ("1-2,5-6", "3-4,7", "0")
    with capture_logs() as logs:
        at.switch_off(2, 7)
    assert (at.cpus("u"), at.cpus("v"), at.shared) == ("1,5-6", "3-4", "0")
    assert [each["event"] for each in logs][1:] == ["pod runs on fewer CPUs of its own"] * 2
    at.switch_off()
    assert len(parsed_cpus(at.cpus("u"))) == 4
    assert len(parsed_cpus(at.cpus("v"))) == 3
    assert at.shared == "0"


def test_no_cpu_that_is_offline_is_given_to_a_new_pod(tmp_path: Path) -> None:
    at = Machine(tmp_path)
    at.switch_off(1, 5)
    at.admit(a_pod("u", "2"))
    assert (at.cpus("u"), at.shared) == ("2,6", "0,3-4,7")
    refusal = at.managers.reserve(a_pod("v", "4"), lambda _uid: False)
    assert refusal is not None
    at.switch_off()
    at.admit(a_pod("v", "4"))
    assert at.cpus("v") == "1,3,5,7"


def test_others_run_somewhere_when_all_reserved_cpus_have_gone(tmp_path: Path) -> None:
    at = Machine(tmp_path)
    at.admit(a_pod("u", "4"))
    at.switch_off(0)
    assert (at.cpus("u"), at.shared) == ("1-2,5-6", "3-4,7")
    assert at.managers.reserve(a_pod("v", "3"), lambda _uid: False) is not None
    at.switch_off()
    at.admit(a_pod("v", "3"))
    assert at.shared == "0"


def test_the_app_and_its_init_container_go_on_with_others(tmp_path: Path) -> None:
    at = Machine(tmp_path)
    at.admit(a_pod("u", "2", init=(guaranteed("i", "1"),)))
    assert (at.cpus("u", "i"), at.cpus("u")) == ("4", "1,4")
    at.switch_off(4)
    assert (at.cpus("u", "i"), at.cpus("u")) == ("1", "1,5")


def test_a_pod_that_has_its_cpus_as_one_part_has_another_part(tmp_path: Path) -> None:
    at = Machine(tmp_path, pod_level=PodLevel.BY_POD)
    at.admit(a_pod("u", guaranteed("a", "1", memory="64Mi"), whole="2"))
    assert at.managers.cpus.assigned_to("u") == {1, 5}
    at.switch_off(5)
    assert at.managers.cpus.assigned_to("u") == {1, 4}
    assert at.cpus("u", "a") == "1"


def test_what_went_and_came_is_on_the_disk(tmp_path: Path) -> None:
    async def run() -> str:
        at = Machine(tmp_path)
        at.admit(a_pod("u", "2"))
        at.switch_off(1)
        assert await at.managers.keep()
        return (tmp_path / "cpu_manager_state").read_text()

    assert '"defaultCpuSet":"0,2-3,6-7","entries":{"u":{"c0":"4-5"}}' in trio.run(run)


async def test_the_file_of_the_kernel_is_watched(tmp_path: Path) -> None:
    at = Machine(tmp_path)
    at.admit(a_pod("u", "2"))
    changed = trio.Event()
    at.managers.on_change.add(changed.set)
    async with trio.open_nursery() as nursery:
        watch = CpuWatch(at.managers, tmp_path, lambda: at.pods, 0.01)
        nursery.start_soon(watch.run)
        write_online(tmp_path, SMALL, [1])
        with trio.fail_after(60):
            await changed.wait()
        nursery.cancel_scope.cancel()
    assert at.cpus("u") == "4-5"


def test_where_cgroups_do_not_get_cpus_that_come_nobody_else_does(tmp_path: Path) -> None:
    known = frozenset(range(8))
    write_online(tmp_path, SMALL, [5])
    gone = changed_topology(tmp_path, known, takes_new=False)
    assert gone is not None
    assert gone.all == known - {5}
    write_online(tmp_path, SMALL, [])
    assert changed_topology(tmp_path, gone.all, takes_new=False) is None
    write_online(tmp_path, SMALL, [6])
    less = changed_topology(tmp_path, gone.all, takes_new=False)
    assert less is not None
    assert less.all == known - {5, 6}


@pytest.mark.parametrize("text", ["no list", ""])
async def test_a_file_that_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    at = Machine(tmp_path)
    (tmp_path / "cpu/online").write_text(text)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(CpuWatch(at.managers, tmp_path, tuple, 0.01).run)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    assert at.shared == "0-7"
    failed = [each["event"] for each in logs if "failed" in each["event"]]
    assert failed == ["CPU topology read failed, will retry"] * bool(text)
