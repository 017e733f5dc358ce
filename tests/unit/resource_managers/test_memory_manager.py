"""From which NUMA nodes containers have memory and huge pages, and what is kept of it."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve

from tests.unit.resource_managers.machines import Shape, machine, managers_of
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.config.parts import MemoryReservation
from trio_kubelet.k8s import Container, Pod, Quantity
from trio_kubelet.resource_managers import Refusal, ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.machine_topology import Level
from trio_kubelet.resource_managers.memory_draft import (
    StaticMemoryPolicy,
    static_memory_policy,
    wanted_at_once,
    wanted_memory,
)
from trio_kubelet.resource_managers.topology_manager import TOPOLOGY_AFFINITY_ERROR

GIB = 1 << 30
TWO = Shape(sockets=2)
"""Two nodes of 10 GiB."""

FOUR = Shape(sockets=2, nodes_per_socket=2)
PAGES = Shape(sockets=2, pages=1024)
"""Two nodes of 8 GiB and 2 GiB of huge pages."""


def reserved(*gib: int, resource: str = "memory") -> list[MemoryReservation]:
    return [
        MemoryReservation(numa_node=node, limits={resource: Quantity(f"{amount}Gi")})
        for node, amount in enumerate(gib)
        if amount
    ]


def policy(shape: Shape = TWO, *gib: int) -> StaticMemoryPolicy:
    amounts = {"memory": sum(gib) * GIB} if gib else {}
    return static_memory_policy(machine(shape), reserved(*gib), amounts)


def a_node(
    shape: Shape = TWO, *gib: int, name: str = "none", root: Path = Path("/nowhere")
) -> ResourceManagers:
    return managers_of(None, root, memory=policy(shape, *gib), on=machine(shape), name=name)


def asking(name: str, gib: int, pages_gib: int = 0, *, sidecar: bool = False) -> Container:
    container = guaranteed(name, "500m", memory=f"{gib}Gi", sidecar=sidecar)
    if not pages_gib or container.resources is None:
        return container
    more = {"hugepages-2Mi": Quantity(f"{pages_gib}Gi")}
    resources = evolve(
        container.resources,
        requests={**container.resources.requests, **more},
        limits={**container.resources.limits, **more},
    )
    return evolve(container, resources=resources)


def pod(uid: str, *gib: int, init: tuple[Container, ...] = ()) -> Pod:
    return a_pod(uid, *(asking(f"c{number}", each) for number, each in enumerate(gib)), init=init)


def reserve(at: ResourceManagers, asked: Pod) -> Refusal | None:
    return at.reserve(asked, lambda _uid: False)


def mems(at: ResourceManagers, uid: str, *names: str) -> list[str]:
    return [at.placement(uid, name).cpuset_mems for name in names or ("c0",)]


def test_machines_of_too_many_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 12 NUMA Nodes: this one has 13"):
        policy(Shape(sockets=13, cores_per_node=1))


# Who, and how much


def test_memory_and_huge_pages_of_guaranteed_pods_are_of_certain_nodes() -> None:
    asked = asking("c", 1, 1)
    assert wanted_memory(a_pod("u", asked)) == {"c": {"memory": GIB, "hugepages-2Mi": GIB}}
    plain = Container(name="c", image="i")
    assert wanted_memory(a_pod("u", plain)) == {}
    whole = a_pod("u", asked, whole="1")
    assert wanted_memory(whole) == {}


def test_what_a_pod_has_at_once_counts_init_containers_and_sidecars() -> None:
    init = (asking("a", 5), asking("s", 2, sidecar=True), asking("b", 4))
    assert wanted_at_once(pod("u", 1, 2, init=init)) == {"memory": 6 * GIB}
    assert wanted_at_once(pod("u", 3, 2, init=init)) == {"memory": 7 * GIB}


# The machine


def test_what_is_reserved_and_huge_pages_are_not_for_memory() -> None:
    found = policy(PAGES, 1, 2).nodes
    assert {node: each["memory"].allocatable // GIB for node, each in found.items()} == {0: 7, 1: 6}
    assert [each["hugepages-2Mi"].allocatable // GIB for each in found.values()] == [2, 2]


@pytest.mark.parametrize(
    ("reservations", "node_reserved", "problem"),
    [
        (reserved(1, 1), {"memory": GIB}, '"2Gi" of type "memory" is not equal to the value "1Gi"'),
        (reserved(), {"memory": GIB}, '"0" of type "memory" is not equal to the value "1Gi"'),
        (reserved(0, 0, 1), {"memory": GIB}, "references a NUMA node 2 that does not exist"),
        (
            reserved(1, resource="hugepages-2Mi"),
            {},
            '"1Gi" of type "hugepages-2Mi" is not equal to the value "0"',
        ),
    ],
)
def test_reservations_must_fit_the_machine_and_what_the_node_reserves(
    reservations: list[MemoryReservation], node_reserved: Mapping[str, int], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        static_memory_policy(machine(TWO), reservations, node_reserved)


# Which nodes


@pytest.mark.parametrize(
    ("shape", "pods", "nodes"),
    [
        (TWO, [(4,)], [["0"]]),
        (TWO, [(10,), (4,)], [["0"], ["1"]]),
        (TWO, [(6,), (6,), (4,)], [["0"], ["1"], ["0"]]),
        (TWO, [(6, 6)], [["0", "1"]]),
        (TWO, [(15,)], [["0-1"]]),
        (TWO, [(15,), (5,)], [["0-1"], ["0-1"]]),
        # What is in a group with others is for the group, what is alone stays alone
        (FOUR, [(15,), (5,)], [["0-1"], ["2"]]),
        (FOUR, [(5,), (15,)], [["0"], ["1-2"]]),
        (FOUR, [(15,), (15,)], [["0-1"], ["2-3"]]),
        (FOUR, [(35,)], [["0-3"]]),
    ],
)
def test_memory_is_of_as_few_nodes_as_can_be(
    shape: Shape, pods: list[tuple[int, ...]], nodes: list[list[str]]
) -> None:
    at = a_node(shape)
    found = []
    for number, sizes in enumerate(pods):
        assert reserve(at, pod(f"u{number}", *sizes)) is None
        found.append(mems(at, f"u{number}", *(f"c{each}" for each in range(len(sizes)))))
    assert found == nodes


def test_huge_pages_are_of_the_same_nodes() -> None:
    at = a_node(PAGES)
    assert reserve(at, a_pod("u", asking("c0", 1, 2))) is None
    assert reserve(at, a_pod("v", asking("c0", 1, 1))) is None
    assert (mems(at, "u"), mems(at, "v")) == (["0"], ["1"])
    assert reserve(at, a_pod("w", asking("c0", 1, 2))) == Refusal(
        reason="UnexpectedAdmissionError",
        message="Allocate failed due to [memorymanager] failed to get the default NUMA affinity, "
        "no NUMA nodes with enough memory is available, which is unexpected",
    )


def test_memory_of_init_containers_is_used_again_and_that_of_sidecars_is_not() -> None:
    at = a_node()
    init = (asking("init", 8), asking("sidecar", 2, sidecar=True))
    assert reserve(at, pod("u", 6, init=init)) is None
    assert mems(at, "u", "init", "sidecar", "c0") == ["0"] * 3
    assert reserve(at, pod("v", 2)) is None
    assert mems(at, "v") == ["0"]
    assert reserve(at, pod("w", 1)) is None
    assert mems(at, "w") == ["1"]


def test_what_a_pod_gives_back_is_free() -> None:
    at = a_node()
    assert reserve(at, pod("u", 15)) is None
    assert reserve(at, pod("v", 6)) is not None
    at.release("u")
    assert reserve(at, pod("v", 6)) is None
    assert mems(at, "v") == ["0"]
    assert mems(at, "u") == [""]


# With the topology manager


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("best-effort", None),
        ("restricted", None),
        ("single-numa-node", TOPOLOGY_AFFINITY_ERROR),
    ],
)
def test_more_than_a_node_has(name: str, refusal: Refusal | None) -> None:
    assert reserve(a_node(name=name), pod("u", 15)) == refusal


@pytest.mark.parametrize(
    ("name", "refusal"), [("none", None), ("restricted", TOPOLOGY_AFFINITY_ERROR)]
)
def test_more_than_a_node_has_left(name: str, refusal: Refusal | None) -> None:
    at = a_node(FOUR, name=name)
    for number in range(2):
        assert reserve(at, pod(f"u{number}", 10)) is None
        assert reserve(at, pod(f"v{number}", 1)) is None
    assert mems(at, "u1") == ["2"]
    assert reserve(at, pod("w", 9)) is None
    assert reserve(at, pod("x", 10)) == (
        refusal
        or Refusal(
            reason="UnexpectedAdmissionError",
            message="Allocate failed due to [memorymanager] failed to get the default NUMA "
            "affinity, no NUMA nodes with enough memory is available, which is unexpected",
        )
    )


@pytest.mark.parametrize("by_pod", [True, False])
def test_a_pod_whose_agent_was_killed_after_it_got_all_memory_is_admitted_again(
    *, by_pod: bool
) -> None:
    at = managers_of(None, memory=policy(), on=machine(TWO), name="single-numa-node", by_pod=by_pod)
    for uid in ("first", "second", "second"):
        assert reserve(at, pod(uid, 9)) is None
    assert mems(at, "second") == ["1"]


def test_cpus_and_memory_are_of_the_same_node() -> None:
    shape = Shape(sockets=2)
    cpus = static_cpu_policy(
        machine(shape), CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0
    )
    at = managers_of(cpus, memory=policy(shape), name="single-numa-node")
    # The first node has 7 CPUs left and 10 GiB, the second one 8 and 10.
    assert reserve(at, a_pod("u", guaranteed("c0", "6", memory="2Gi"))) is None
    assert reserve(at, a_pod("v", guaranteed("c0", "2", memory="8Gi"))) is None
    assert [at.placement(uid, "c0").cpuset_mems for uid in "uv"] == ["0", "1"]
    assert at.cpus.assigned_to("v") <= machine(shape).groups[Level.NODE][1]
    refused = reserve(at, a_pod("w", guaranteed("c0", "4", memory="6Gi")))
    assert refused == TOPOLOGY_AFFINITY_ERROR


# What is kept


async def test_an_agent_goes_on_with_what_the_last_one_kept(tmp_path: Path) -> None:
    at = a_node(TWO, 1, 0, root=tmp_path)
    await at.load()
    assert reserve(at, pod("u", 9)) is None
    assert await at.keep()
    content = json.loads((tmp_path / "memory_manager_state").read_text())
    assert content["policyName"] == "Static"
    assert content["entries"] == {
        "u": {"c0": [{"numaAffinity": [0], "type": "memory", "size": 9 * GIB}]}
    }
    again = a_node(TWO, 1, 0, root=tmp_path)
    await again.load()
    assert mems(again, "u") == ["0"]
    assert reserve(again, pod("v", 1)) is None
    assert mems(again, "v") == ["1"]


async def test_a_policy_that_changed_starts_anew_both_ways(tmp_path: Path) -> None:
    at = a_node(root=tmp_path)
    await at.load()
    reserve(at, pod("u", 1))
    await at.keep()
    file = tmp_path / "memory_manager_state"
    await managers_of(None, tmp_path).load()
    assert json.loads(file.read_text())["machineState"] == {}
    at = a_node(root=tmp_path)
    await at.load()
    assert at.uids() == set()
    assert set(json.loads(file.read_text())["machineState"]) == {"0", "1"}
