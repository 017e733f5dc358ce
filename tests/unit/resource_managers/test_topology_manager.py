"""Which NUMA nodes serve a container, by each policy and scope, and which pods are refused."""

import pytest

from tests.unit.resource_managers.machines import (
    EIGHT_NODES,
    FOUR_NODES,
    TWO_SOCKETS,
    Shape,
    machine,
    managers_of,
)
from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers import Refusal, ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.topology_manager import (
    TOO_MANY_RESOURCES,
    TOPOLOGY_AFFINITY_ERROR,
    TopologyPolicy,
)

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def a_node(
    shape: Shape, policy: str, *, by_pod: bool = False, socket: bool = False, reserved: str = "0"
) -> ResourceManagers:
    cpus = static_cpu_policy(
        machine(shape),
        CpuPolicyOptions(align_by_socket=socket),
        reserved_cpus=reserved,
        reserved_milli=0,
    )
    return managers_of(cpus, name=policy, by_pod=by_pod)


def reserve(at: ResourceManagers, pod: Pod) -> Refusal | None:
    return at.reserve(pod, lambda _uid: False)


def cpus(at: ResourceManagers, uid: str, *names: str) -> list[str]:
    return [at.placement(uid, name).cpuset_cpus for name in names or ("c0",)]


# Two sockets of 12 CPUs, of which one is reserved: 0-5,12-17 and 6-11,18-23


@pytest.mark.parametrize(
    ("policy", "pod", "given"),
    [
        ("none", "10", ["1-5,13-17"]),
        ("best-effort", "10", ["1-5,13-17"]),
        ("restricted", "10", ["1-5,13-17"]),
        ("single-numa-node", "10", ["1-5,13-17"]),
        ("none", "12", ["6-11,18-23"]),
        ("single-numa-node", "12", ["6-11,18-23"]),
        # More than one node has: two are as few as can be
        ("best-effort", "14", ["1,6-11,13,18-23"]),
        ("restricted", "14", ["1,6-11,13,18-23"]),
    ],
)
def test_a_container_is_served_from_as_few_nodes_as_can_be(
    policy: str, pod: str, given: list[str]
) -> None:
    at = a_node(TWO_SOCKETS, policy)
    assert reserve(at, a_pod("u", pod)) is None
    assert cpus(at, "u") == given


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        ("none", None),
        ("best-effort", None),
        ("restricted", TOPOLOGY_AFFINITY_ERROR),
        ("single-numa-node", TOPOLOGY_AFFINITY_ERROR),
    ],
)
def test_what_would_fit_one_node_and_is_free_on_two_only(
    policy: str, refusal: Refusal | None
) -> None:
    at = a_node(TWO_SOCKETS, policy)
    assert reserve(at, a_pod("first", "6")) is None
    assert reserve(at, a_pod("second", "7")) is None
    assert reserve(at, a_pod("third", "8")) == refusal
    assert at.uids() == {"first", "second", *(["third"] if refusal is None else [])}


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        ("none", None),
        ("best-effort", None),
        ("restricted", None),
        ("single-numa-node", TOPOLOGY_AFFINITY_ERROR),
    ],
)
def test_what_no_single_node_has(policy: str, refusal: Refusal | None) -> None:
    assert reserve(a_node(TWO_SOCKETS, policy), a_pod("u", "13")) == refusal


@pytest.mark.parametrize("by_pod", [True, False])
def test_a_pod_whose_agent_was_killed_after_it_got_all_that_is_free_is_admitted_again(
    *, by_pod: bool
) -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node", by_pod=by_pod)
    assert reserve(at, a_pod("first", "11")) is None
    assert reserve(at, a_pod("second", "12")) is None
    assert reserve(at, a_pod("second", "12")) is None
    assert cpus(at, "second") == ["6-11,18-23"]


def test_the_words_of_a_refusal_are_upstreams() -> None:
    assert (
        Refusal(
            reason="TopologyAffinityError",
            message="Resources cannot be allocated with Topology locality",
        )
        == TOPOLOGY_AFFINITY_ERROR
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_pods_that_ask_for_nothing_of_their_own_are_always_admitted(policy: str) -> None:
    at = a_node(TWO_SOCKETS, policy)
    assert reserve(at, a_pod("u", "500m")) is None
    assert at.uids() == set()


@pytest.mark.parametrize("policy", POLICIES)
def test_without_exclusive_cpus_the_topology_is_in_nobodys_way(policy: str) -> None:
    assert reserve(managers_of(None, name=policy), a_pod("u", "4")) is None


# Scopes


@pytest.mark.parametrize(("by_pod", "given"), [(False, ["1-4,13-16", "6-9,18-21"]), (True, None)])
def test_the_scope_says_whether_containers_or_whole_pods_are_aligned(
    by_pod: bool, given: list[str] | None
) -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node", by_pod=by_pod)
    refusal = reserve(at, a_pod("u", "8", "8"))
    assert refusal == (None if given else TOPOLOGY_AFFINITY_ERROR)
    if given:
        assert cpus(at, "u", "c0", "c1") == given


def test_all_containers_of_a_pod_are_on_its_node() -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node", by_pod=True)
    assert reserve(at, a_pod("u", "2", "6", "4")) is None
    assert cpus(at, "u", "c0", "c1", "c2") == ["6,18", "7-9,19-21", "10-11,22-23"]


def test_what_a_pod_needs_at_once_counts_its_init_containers_as_the_scheduler_does() -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node", by_pod=True)
    sidecar, init = guaranteed("sidecar", "4", sidecar=True), guaranteed("init", "8")
    assert reserve(at, a_pod("u", "8", init=(sidecar, init))) is None
    assert reserve(at, a_pod("v", "9", init=(sidecar,))) == TOPOLOGY_AFFINITY_ERROR


def test_an_app_is_aligned_with_the_cpus_of_its_init_container() -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node")
    assert reserve(at, a_pod("first", "6")) is None
    pod = a_pod("u", "10", init=(guaranteed("init", "2"),))
    assert reserve(at, pod) == TOPOLOGY_AFFINITY_ERROR
    at = a_node(TWO_SOCKETS, "single-numa-node")
    assert reserve(at, a_pod("u", "4", init=(guaranteed("init", "2"),))) is None
    assert cpus(at, "u", "init", "c0") == ["1,13", "1-2,13-14"]


# Sockets of two nodes: 0-3,16-19 and 4-7,20-23; 8-11,24-27 and 12-15,28-31


@pytest.mark.parametrize(("socket", "refusal"), [(False, TOPOLOGY_AFFINITY_ERROR), (True, None)])
def test_two_nodes_of_one_socket_are_as_good_as_one_where_sockets_are_aligned(
    socket: bool, refusal: Refusal | None
) -> None:
    at = a_node(FOUR_NODES, "restricted", socket=socket)
    for number in range(4):
        assert reserve(at, a_pod(f"p{number}", "5")) is None
    assert reserve(at, a_pod("u", "5")) == refusal
    if refusal is None:
        sockets = {cpu.socket for cpu in machine(FOUR_NODES).cpus if cpu.id in given(at, "u")}
        assert len(sockets) == 1


def given(at: ResourceManagers, uid: str) -> frozenset[int]:
    return at.cpus.assigned_to(uid)


# Machines


def test_nodes_that_are_near_to_one_another_are_preferred() -> None:
    shape = Shape(sockets=1, nodes_per_socket=4, cores_per_node=1, far=((0, 1),))
    at = managers_of(
        static_cpu_policy(machine(shape), CpuPolicyOptions(), reserved_cpus="3", reserved_milli=0),
        name="best-effort",
        prefer_closest=True,
    )
    assert reserve(at, a_pod("u", "4")) is None
    nodes = {cpu.node for cpu in machine(shape).cpus if cpu.id in given(at, "u")}
    assert nodes == {0, 2}


def test_a_machine_of_too_many_nodes_is_refused_unless_nothing_is_aligned() -> None:
    many = machine(Shape(sockets=9, cores_per_node=1))
    assert TopologyPolicy(topology=many).problem(8) == ""
    assert TopologyPolicy(topology=many, name="restricted").problem(9) == ""
    assert "more than 8 NUMA Nodes: this one has 9" in TopologyPolicy(
        topology=many, name="restricted"
    ).problem(8)


@pytest.mark.parametrize("by_pod", [False, True])
def test_a_machine_of_512_cpus_is_filled_to_the_last_core(by_pod: bool) -> None:
    at = a_node(EIGHT_NODES, "single-numa-node", by_pod=by_pod, reserved="0,256")
    for number in range(255):
        assert reserve(at, a_pod(f"u{number}", "2")) is None
    assert at.cpus.free_count == 0


@pytest.mark.parametrize("by_pod", [False, True])
def test_a_pod_of_too_many_parts_is_refused_before_any_of_it_is_placed(by_pod: bool) -> None:
    """On a machine of eight nodes each part is placed by looking at 255 sets of them."""
    at = a_node(EIGHT_NODES, "best-effort", by_pod=by_pod)
    most = TopologyPolicy(topology=machine(EIGHT_NODES), name="best-effort").most_demands
    fits, exceeds = (a_pod(f"u{count}", *["1"] * count) for count in (most, most + 1))
    assert reserve(at, fits) is None
    refusal = reserve(at, exceeds)
    assert refusal is not None
    assert refusal.reason == TOO_MANY_RESOURCES
    assert at.uids() == {fits.metadata.uid}
    assert refusal.message.endswith(
        f"Too many: {most + 1}: must have at most {most} items together"
    )


def test_parts_are_not_counted_where_nothing_is_aligned() -> None:
    at = a_node(EIGHT_NODES, "none")
    assert reserve(at, a_pod("u", *["1"] * 500)) is None


# What was admitted before


def test_a_pod_of_before_is_taken_up_wherever_it_is() -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node")
    at.recall(a_pod("old", "13"), lambda _uid: False)
    assert at.uids() == {"old"}


def test_admissions_are_told_of_with_what_was_in_the_way() -> None:
    at = a_node(TWO_SOCKETS, "single-numa-node")
    told: list[bool] = []
    at.on_admission.add(lambda _seconds, is_aligned: told.append(is_aligned))

    for number, cpu in enumerate(["2", "13", "500m"]):
        reserve(at, a_pod(f"u{number}", cpu))
    assert told == [True, False, True]
