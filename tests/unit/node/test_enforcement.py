"""What all pods together may use, and the processes of the system and of Kubernetes."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from tests.unit.node.nodes import GIB, a_machine
from tests.unit.resources.fake_cgroups import FakeV2
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import Quantity
from trio_kubelet.node.allocatable import Reservations, machine_capacity
from trio_kubelet.node.enforcement import (
    Enforcement,
    Enforcer,
    enforcement,
    pods_cgroup_config,
)
from trio_kubelet.node.machine import MachineSize
from trio_kubelet.node.resources import node_resources
from trio_kubelet.resources import CgroupConfig, CgroupDriver, Cgroups
from trio_kubelet.telemetry import EventRecorder, Journal

CAPACITY = machine_capacity(a_machine(), max_pods=110)
RESERVED = Reservations(
    system={"cpu": Quantity("500m"), "memory": Quantity("1Gi"), "pid": Quantity(1000)},
    kube={"cpu": Quantity("500m")},
    eviction={Signal.MEMORY: ThresholdValue.parse("100Mi")},
)


def test_pods_get_what_is_not_reserved_and_eviction_has_room_above() -> None:
    assert pods_cgroup_config(CAPACITY, RESERVED, ("pods",), 32768) == CgroupConfig(
        cpu_shares=3072,
        memory_limit_bytes=7 * GIB,
        pids_limit=31768,
        hugepage_limits={2 << 20: 0},
    )


def test_without_enforcement_they_get_the_machine() -> None:
    assert pods_cgroup_config(CAPACITY, RESERVED, ("none",), 32768) == CgroupConfig(
        cpu_shares=4096,
        memory_limit_bytes=8 * GIB,
        pids_limit=32768,
        hugepage_limits={2 << 20: 0},
    )


def test_an_unknown_number_of_processes_is_not_limited() -> None:
    assert pods_cgroup_config(CAPACITY, RESERVED, ("pods",)).pids_limit is None


def test_huge_pages_are_limited_to_those_there_are() -> None:
    pages = MachineSize(cpu_milli=4000, memory_bytes=8 * GIB, hugepages={GIB: 2 * GIB})
    capacity = machine_capacity(a_machine(size=pages), max_pods=110)
    limits = pods_cgroup_config(capacity, RESERVED, ("pods",)).hugepage_limits
    assert limits == {GIB: 2 * GIB}


def test_more_reserved_than_there_is_leaves_the_least() -> None:
    greedy = Reservations(kube={"cpu": Quantity(8), "memory": Quantity("16Gi")})
    config = pods_cgroup_config(CAPACITY, greedy, ("pods",))
    assert (config.cpu_shares, config.memory_limit_bytes) == (2, 0)


BOTH = {
    "system_reserved": {"cpu": "500m", "memory": "1Gi", "pid": "1000"},
    "kube_reserved": {"cpu": "250m", "memory": "512Mi"},
    "system_reserved_cgroup": "/system",
    "kube_reserved_cgroup": "/kube",
}


def asked_for(*levels: str, keeps_reserved: bool = False, **fields: Any) -> Enforcement:
    configuration = KubeletConfiguration(enforce_node_allocatable=levels, **{**BOTH, **fields})
    resources = node_resources(Settings(configuration=configuration), a_machine())
    return enforcement(configuration, resources, max_pids=32768, keeps_reserved=keeps_reserved)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (("pods",), {}),
        (
            ("pods", "kube-reserved", "system-reserved"),
            {
                "/system": CgroupConfig(cpu_shares=512, memory_limit_bytes=GIB, pids_limit=1000),
                "/kube": CgroupConfig(cpu_shares=256, memory_limit_bytes=GIB // 2),
            },
        ),
        (
            ("system-reserved-compressible", "kube-reserved"),
            {
                "/kube": CgroupConfig(cpu_shares=256, memory_limit_bytes=GIB // 2),
                "/system": CgroupConfig(cpu_shares=512),
            },
        ),
        (("kube-reserved-compressible",), {"/kube": CgroupConfig(cpu_shares=256)}),
    ],
)
def test_each_value_holds_its_cgroup_to_what_is_reserved_for_it(
    levels: tuple[str, ...], expected: dict[str, CgroupConfig]
) -> None:
    found = asked_for(*levels).reserved
    assert [(each.cgroup, each.config) for each in found] == list(expected.items())


def test_what_is_reserved_is_not_taken_back_where_memory_has_quality_of_service() -> None:
    (system,) = asked_for("system-reserved", keeps_reserved=True).reserved
    assert system.config is not None
    assert system.config.memory_min_bytes == GIB
    (system,) = asked_for("system-reserved-compressible", keeps_reserved=True).reserved
    assert system.config == CgroupConfig(cpu_shares=512)


class Node:
    """Cgroups of files, with those of the system and of Kubernetes' processes."""

    def __init__(self, root: Path, wanted: Enforcement) -> None:
        self.root = root
        names = ("kubepods", "kubepods/burstable", "kubepods/besteffort", "system", "kube")
        self.cgroups = Cgroups(
            FakeV2(root, "cpu memory", names).tree,
            KubeletConfiguration(),
            driver=CgroupDriver.CGROUPFS,
        )
        self.journal = Journal(TrioClock())
        self.enforcer = Enforcer(self.cgroups, EventRecorder(self.journal, "node"), wanted)

    def value(self, name: str) -> str:
        return (self.root / name).read_text()

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(entry.event, entry.cause) for entry in self.journal.entries()]


async def test_limits_are_written_and_each_is_told_in_the_go_kubelets_words(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, asked_for("pods", "system-reserved", "kube-reserved-compressible"))
    await node.enforcer.start()
    await node.enforcer.run()
    assert node.value("kubepods/memory.max") == str(8 * GIB - GIB - GIB // 2)
    assert node.value("system/memory.max") == str(GIB)
    assert node.value("kube/cpu.weight") == "35"
    assert not (tmp_path / "kube/memory.max").exists()
    assert node.events == [
        ("NodeAllocatableEnforced", "Updated Node Allocatable limit across pods"),
        ("NodeAllocatableEnforced", "Updated limits on system reserved cgroup /system"),
        ("NodeAllocatableEnforced", "Updated limits on kube reserved cgroup /kube"),
    ]


async def test_a_cgroup_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    wanted = asked_for("kube-reserved", kube_reserved_cgroup="/kubelet")
    node = Node(tmp_path, wanted)
    with pytest.raises(StartError) as failed:
        await node.enforcer.start()
    told = (
        'Failed to enforce Kube Reserved Cgroup Limits on "/kubelet": cgroup "/kubelet" has some '
        f"missing paths: {tmp_path}/kubelet"
    )
    assert str(failed.value) == (
        f'{told}; make it before the agent starts, or take "kube-reserved" out of '
        "enforceNodeAllocatable"
    )
    assert node.events[-1] == ("FailedNodeAllocatableEnforcement", told)


async def test_a_cgroup_for_which_nothing_is_reserved_is_an_error(tmp_path: Path) -> None:
    node = Node(tmp_path, asked_for("system-reserved-compressible", system_reserved={}))
    with pytest.raises(StartError, match=r"Compressible .* not configured properly"):
        await node.enforcer.start()


async def test_a_cgroup_that_refuses_its_limit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system/memory.max").mkdir()
    with pytest.raises(StartError, match="reserve more than it uses"):
        await Node(tmp_path, asked_for("system-reserved")).enforcer.start()


async def test_pods_that_use_more_than_they_may_are_limited_once_they_use_less(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    node = Node(tmp_path, asked_for("pods"))
    refused = tmp_path / "kubepods/memory.max"
    refused.mkdir()
    await node.enforcer.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.enforcer.run)
        await trio.sleep(90)
        refused.rmdir()
        await trio.sleep(60)
    assert refused.read_text() == str(8 * GIB - GIB - GIB // 2)
    failed, *again, done = node.events
    assert failed[0] == "FailedNodeAllocatableEnforcement"
    assert failed[1].startswith('Failed to update Node Allocatable Limits "/kubepods": ')
    assert again == [failed]
    assert done[0] == "NodeAllocatableEnforced"


@pytest.mark.parametrize(
    ("cpus", "problem"),
    [
        ("0-3", ""),
        ("3,1", ""),
        (
            "0,4",
            'Invalid cpuset "0,4" specified by --reserved-cpus (reservedSystemCPUs): '
            "the CPUs of this machine are 0-3",
        ),
        ("0-99999999999999999999", "Invalid cpuset"),
    ],
)
def test_cpus_that_the_machine_does_not_have_cannot_be_reserved(cpus: str, problem: str) -> None:
    configuration = KubeletConfiguration(reserved_system_cpus=cpus, eviction_hard={})
    found = node_resources(Settings(configuration=configuration), a_machine()).problem()
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
