"""CPU and topology policies together: one line a case, on machines of one to eight NUMA nodes.

The values follow from the published descriptions of the policies. CPU 0 is reserved everywhere.
"""

import pytest

from tests.unit.resource_managers.machines import (
    FOUR_NODES,
    HYBRID,
    PARTLY_OFFLINE,
    SMALL,
    SPLIT_CACHES,
    Shape,
    machine,
    managers_of,
)
from tests.unit.resource_managers.pods import a_pod
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy

NONE, BEST, RESTRICTED, SINGLE = "none", "best-effort", "restricted", "single-numa-node"
WHOLE_CORES, ACROSS_NODES = "full_pcpus_only", "distribute_cpus_across_numa"
BY_SOCKET, BY_CACHE = "align_by_socket", "prefer_align_cpus_by_uncorecache"
REFUSED, NO_CORES, NO_ROOM = (
    "TopologyAffinityError",
    "SMTAlignmentError",
    "UnexpectedAdmissionError",
)


def nodes(count: int) -> Shape:
    """A machine of so many nodes of two cores of two threads: node 1 of five has 2-3 and 12-13."""
    return Shape(sockets=count, cores_per_node=2)


SMT_OFF = Shape(sockets=2, cores_per_node=4, threads=1)
"""CPUs 0-3 in the first node, 4-7 in the second."""


def given(shape: Shape, policy: str, wanted: str, options: str, *, by_pod: bool) -> str:
    """The CPUs of each container of a pod that asks for `wanted`, or the reason of its refusal."""
    on = CpuPolicyOptions(**dict.fromkeys(options.split(), True))
    cpus = static_cpu_policy(machine(shape), on, reserved_cpus="0", reserved_milli=0)
    at = managers_of(cpus, name=policy, by_pod=by_pod)
    each = wanted.split()
    refusal = at.reserve(a_pod("u", *each), lambda _uid: False)
    if refusal is not None:
        return refusal.reason
    return " ".join(at.placement("u", f"c{number}").cpuset_cpus for number in range(len(each)))


@pytest.mark.parametrize(
    ("shape", "policy", "wanted", "options", "expected"),
    [
        # One node: the policy makes no difference
        (SMALL, NONE, "3", "", "1,4-5"),
        (SMALL, SINGLE, "3", "", "1,4-5"),
        (SMALL, SINGLE, "7", "", "1-7"),
        (SMALL, RESTRICTED, "8", "", REFUSED),
        (SMALL, NONE, "8", "", NO_ROOM),
        # Two
        (nodes(2), SINGLE, "3", "", "1,4-5"),
        (nodes(2), SINGLE, "4", "", "2-3,6-7"),
        (nodes(2), SINGLE, "5", "", REFUSED),
        (nodes(2), RESTRICTED, "5", "", "2-4,6-7"),
        (nodes(2), BEST, "7", "", "1-7"),
        # Three
        (nodes(3), SINGLE, "4", "", "2-3,8-9"),
        (nodes(3), RESTRICTED, "6", "", "1-3,7-9"),
        (nodes(3), RESTRICTED, "8", "", "2-5,8-11"),
        (nodes(3), RESTRICTED, "9", "", "2-6,8-11"),
        # Four
        (nodes(4), SINGLE, "4 4 4", "", "2-3,10-11 4-5,12-13 6-7,14-15"),
        (nodes(4), SINGLE, "4 4 4 4", "", REFUSED),
        (nodes(4), BEST, "12", "", "2-7,10-15"),
        (nodes(4), RESTRICTED, "4 4 4 3", "", "2-3,10-11 4-5,12-13 6-7,14-15 1,8-9"),
        # Five, six, seven: the fewest that have enough
        (nodes(5), RESTRICTED, "16", "", "2-9,12-19"),
        (nodes(5), RESTRICTED, "17", "", "2-10,12-19"),
        (nodes(5), SINGLE, "5", "", REFUSED),
        (nodes(6), RESTRICTED, "20", "", "2-11,14-23"),
        (nodes(6), SINGLE, "4", "", "2-3,14-15"),
        (nodes(7), RESTRICTED, "24", "", "2-13,16-27"),
        (nodes(7), BEST, "3 4", "", "1,14-15 2-3,16-17"),
        # Eight
        (nodes(8), SINGLE, "4", "", "2-3,18-19"),
        (nodes(8), SINGLE, "5", "", REFUSED),
        (nodes(8), RESTRICTED, "28", "", "2-15,18-31"),
        (nodes(8), BEST, "29", "", "2-16,18-31"),
        (nodes(8), RESTRICTED, "31", "", "1-31"),
        (nodes(8), RESTRICTED, "32", "", REFUSED),
        (nodes(8), BEST, "5", ACROSS_NODES, "1-3,17-18"),
        (nodes(8), NONE, "6", ACROSS_NODES, "2-5,18,20"),
        (nodes(8), SINGLE, "2", WHOLE_CORES, "1,17"),
        (nodes(8), SINGLE, "3", WHOLE_CORES, NO_CORES),
        (nodes(8), SINGLE, "4", WHOLE_CORES, "2-3,18-19"),
        # Two nodes in a socket
        (FOUR_NODES, RESTRICTED, "9", BY_SOCKET, "4-7,16,20-23"),
        (FOUR_NODES, RESTRICTED, "5", BY_SOCKET, "1-2,16-18"),
        (FOUR_NODES, RESTRICTED, "16", BY_SOCKET, "8-15,24-31"),
        (FOUR_NODES, RESTRICTED, "5 5 6", BY_SOCKET, "1-2,16-18 3-5,19-20 8-10,24-26"),
        (FOUR_NODES, RESTRICTED, "8 9", "", "4-7,20-23 8-11,16,24-27"),
        (FOUR_NODES, RESTRICTED, "8 9", BY_SOCKET, "4-7,20-23 8-12,24-27"),  # all of one socket
        (FOUR_NODES, RESTRICTED, "17", BY_SOCKET, "8-16,24-31"),  # three nodes are of two sockets
        (FOUR_NODES, RESTRICTED, "9 9 10", BY_SOCKET, REFUSED),
        (FOUR_NODES, BEST, "9 9 10", BY_SOCKET, "4-7,16,20-23 8-12,24-27 1-3,13-14,17-19,29-30"),
        # No second threads, or not of all cores
        (SMT_OFF, SINGLE, "3", "", "1-3"),
        (SMT_OFF, SINGLE, "4", "", "4-7"),
        (SMT_OFF, SINGLE, "5", "", REFUSED),
        (SMT_OFF, RESTRICTED, "5", "", "1,4-7"),
        (SMT_OFF, SINGLE, "3", WHOLE_CORES, "1-3"),
        (PARTLY_OFFLINE, SINGLE, "1", WHOLE_CORES, "3"),
        (PARTLY_OFFLINE, SINGLE, "2", WHOLE_CORES, "3,6"),
        (PARTLY_OFFLINE, SINGLE, "3", WHOLE_CORES, NO_CORES),
        (PARTLY_OFFLINE, SINGLE, "4", WHOLE_CORES, "1,3,5-6"),
        (HYBRID, SINGLE, "1", WHOLE_CORES, "8"),
        (HYBRID, SINGLE, "4", WHOLE_CORES, "8-11"),
        (HYBRID, SINGLE, "5", WHOLE_CORES, NO_CORES),
        (HYBRID, SINGLE, "6", WHOLE_CORES, "1,5,8-11"),
        (HYBRID, SINGLE, "5", "", "4,8-11"),
        # Caches within a node
        (SPLIT_CACHES, SINGLE, "4", BY_CACHE, "2-3,10-11"),
        (SPLIT_CACHES, SINGLE, "3", BY_CACHE, "1,8-9"),
        (SPLIT_CACHES, SINGLE, "8", BY_CACHE, "2-5,10-13"),
    ],
)
def test_a_container_has_cpus_of_the_nodes_that_the_policy_allows(
    shape: Shape, policy: str, wanted: str, options: str, expected: str
) -> None:
    assert given(shape, policy, wanted, options, by_pod=False) == expected


@pytest.mark.parametrize(
    ("shape", "policy", "wanted", "expected"),
    [
        (nodes(2), SINGLE, "2 1", "1,5 4"),
        (nodes(2), SINGLE, "2 2", "2,6 3,7"),
        (nodes(2), SINGLE, "4 1", REFUSED),
        (nodes(3), RESTRICTED, "4 4", "2-3,8-9 4-5,10-11"),
        (nodes(4), SINGLE, "2 2", "2,10 3,11"),
        (nodes(4), SINGLE, "4 4", REFUSED),
        (nodes(4), BEST, "4 4", "2-3,10-11 4-5,12-13"),
        (nodes(8), SINGLE, "1 1 1 1", "2 18 3 19"),
        (nodes(8), RESTRICTED, "8 8 8 4", "2-5,18-21 6-9,22-25 10-13,26-29 14-15,30-31"),
        (SMT_OFF, SINGLE, "1 2", "1 2-3"),
        (SMT_OFF, SINGLE, "2 2", "4-5 6-7"),
        (HYBRID, SINGLE, "2 2", "8-9 10-11"),
    ],
)
def test_all_containers_of_a_pod_share_nodes_in_the_scope_of_the_pod(
    shape: Shape, policy: str, wanted: str, expected: str
) -> None:
    assert given(shape, policy, wanted, "", by_pod=True) == expected
