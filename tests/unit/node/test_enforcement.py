"""What all pods together may use."""

from tests.unit.node.nodes import GIB, a_machine
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.k8s import Quantity
from trio_kubelet.node.allocatable import Reservations, machine_capacity, pods_cgroup_config
from trio_kubelet.resources import CgroupConfig
from trio_kubelet.resources.node import MachineSize

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
