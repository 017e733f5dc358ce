"""Allocatable: what is left for pods when the reservations are taken off."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.node.nodes import GIB, a_machine
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.k8s import Quantity
from trio_kubelet.k8s.validation.resources import is_extended
from trio_kubelet.node.allocatable import (
    Reservations,
    Resources,
    allocatable,
    cpu_count,
    machine_capacity,
    overcommitments,
    reservations,
    reserved,
)
from trio_kubelet.node.machine import MachineSize

DEFAULTS = reservations(KubeletConfiguration(), NodeOptions())


def texts(resources: Resources) -> Mapping[str, str]:
    return {name: amount.canonical for name, amount in resources.items()}


def capacity(**machine: object) -> Resources:
    return machine_capacity(a_machine(**machine), max_pods=110)


def test_the_capacity_is_the_machines_size_and_the_number_of_pods() -> None:
    assert texts(capacity()) == {
        "cpu": "4",
        "memory": "8Gi",
        "pods": "110",
        "hugepages-2Mi": "0",
        "ephemeral-storage": "100Gi",
    }


def test_pods_per_core_only_lowers_the_number_of_pods() -> None:
    machine = a_machine()
    assert machine_capacity(machine, max_pods=110, pods_per_core=10)["pods"] == Quantity(40)
    assert machine_capacity(machine, max_pods=30, pods_per_core=10)["pods"] == Quantity(30)


def test_disk_space_is_no_resource_without_storage_isolation() -> None:
    assert "ephemeral-storage" not in machine_capacity(a_machine(), max_pods=1, storage=False)


def test_the_default_eviction_thresholds_come_off_memory_and_disk() -> None:
    # 10 % of 100 GiB, in the single precision that the Go kubelet computes with.
    assert texts(allocatable(capacity(), DEFAULTS)) == {
        "cpu": "4",
        "memory": "8092Mi",
        "pods": "110",
        "hugepages-2Mi": "0",
        "ephemeral-storage": "96636764000",
    }


def test_all_reservations_add_up() -> None:
    left = allocatable(
        capacity(),
        Reservations(
            system={"cpu": Quantity("250m"), "memory": Quantity("1Gi")},
            kube={"cpu": Quantity("70m"), "memory": Quantity("512Mi")},
            eviction={Signal.MEMORY: ThresholdValue.parse("25%")},
        ),
    )
    assert left["cpu"].canonical == "3680m"
    assert left["memory"].canonical == "4608Mi"


def test_huge_pages_come_off_memory_whether_used_or_not() -> None:
    pages = MachineSize(cpu_milli=4000, memory_bytes=8 * GIB, hugepages={GIB: GIB, 2 << 20: GIB})
    left = allocatable(capacity(size=pages), Reservations())
    assert left["memory"].canonical == "6Gi"
    assert left["hugepages-1Gi"].canonical == "1Gi"


def test_what_is_reserved_beyond_the_capacity_leaves_nothing_and_is_named() -> None:
    greedy = Reservations(kube={"memory": Quantity("10Gi")})
    assert allocatable(capacity(), greedy)["memory"] == Quantity(0)
    assert list(overcommitments(capacity(), greedy)) == [
        'Resource "memory" has a reservation of 10Gi but capacity of 8Gi. '
        "Expected capacity >= reservation."
    ]


def test_a_reservation_of_what_the_node_does_not_have_is_left_alone() -> None:
    assert reserved(capacity(), Reservations(system={"pid": Quantity("1000")})) == {}


@pytest.mark.parametrize("threshold", ["0%", "100%"])
def test_a_threshold_of_nothing_or_everything_is_none(threshold: str) -> None:
    configuration = KubeletConfiguration(eviction_hard={"memory.available": threshold})
    assert reserved(capacity(), reservations(configuration, NodeOptions())) == {}


def test_whole_reserved_cpus_count_instead_of_shares() -> None:
    configuration = KubeletConfiguration(
        reserved_system_cpus="0-1,3",
        kube_reserved={"cpu": "100m", "memory": "1Gi"},
        system_reserved={"cpu": "200m"},
    )
    found = reservations(configuration, NodeOptions())
    assert texts(found.system) == {"cpu": "3"}
    assert texts(found.kube) == {"memory": "1Gi"}


def test_eviction_thresholds_can_be_left_out_of_it() -> None:
    options = NodeOptions(experimental_allocatable_ignore_eviction=True)
    assert reservations(KubeletConfiguration(), options).eviction == {}


@pytest.mark.parametrize(("cpus", "count"), [("", 0), ("7", 1), ("0-3", 4), ("0-1, 1,5-6", 4)])
def test_a_list_of_cpus_is_counted(cpus: str, count: int) -> None:
    assert cpu_count(cpus) == count


@pytest.mark.parametrize(
    ("resource", "extended"),
    [
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("example.com/gpu", True),
        ("kubernetes.io/batch", False),
        ("foo.kubernetes.io/batch", False),
        ("requests.example.com/gpu", False),
    ],
)
def test_extended_resources_are_those_of_other_domains(resource: str, extended: bool) -> None:
    assert is_extended(resource) is extended


amounts = st.integers(0, 1 << 44).map(Quantity.from_bytes)
resource_lists = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), amounts)


@given(
    system=resource_lists,
    kube=resource_lists,
    percent=st.integers(0, 100),
    pages=st.integers(0, 1 << 40),
)
def test_allocatable_lies_between_nothing_and_the_capacity(
    system: Resources, kube: Resources, percent: int, pages: int
) -> None:
    size = MachineSize(cpu_milli=4000, memory_bytes=8 * GIB, hugepages={2 << 20: pages})
    whole = capacity(size=size)
    share = ThresholdValue.parse(f"{percent}%")
    eviction = {Signal.MEMORY: share, Signal.NODE_DISK: share}
    left = allocatable(whole, Reservations(system=system, kube=kube, eviction=eviction))
    assert left.keys() == whole.keys()
    assert all(Quantity(0) <= left[name] <= whole[name] for name in whole)
