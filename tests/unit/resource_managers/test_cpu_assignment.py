"""Which CPUs a container is given: one line a case, on machines of many shapes.

The values follow from the published description of the static policy and its options.
"""

import pytest

from tests.unit.resource_managers.machines import (
    EIGHT_NODES,
    FOUR_NODES,
    HYBRID,
    NEIGHBOURS,
    PARTLY_OFFLINE,
    SINGLE_THREADED,
    SMALL,
    SPLIT_CACHES,
    TWO_SOCKETS,
    Shape,
    machine,
)
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.resource_managers.cpu_assignment import CpuChooser, NotEnoughCpusError
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus


def taken(shape: Shape, free: str, count: int, *options: str) -> str:
    chooser = CpuChooser(machine(shape), CpuPolicyOptions(**dict.fromkeys(options, True)))
    return cpu_list(chooser.take(parsed_cpus(free), count))


ONE_SOCKET_OF_A_NODE = Shape(sockets=2, cores_per_node=2)
"""CPUs 0-1 and 4-5 in the first socket, 2-3 and 6-7 in the second."""


@pytest.mark.parametrize(
    ("shape", "free", "count", "cpus"),
    [
        # Nothing, single threads, whole cores
        (SMALL, "0-7", 0, ""),
        (SMALL, "0-7", 1, "0"),
        (SMALL, "1-7", 1, "4"),  # the rest of a core in use goes before a whole one
        (SMALL, "0-7", 2, "0,4"),
        (SMALL, "1-7", 2, "1,5"),
        (SMALL, "0-7", 3, "0-1,4"),
        (SMALL, "1-7", 3, "1,4-5"),
        (SMALL, "0-7", 4, "0-1,4-5"),
        (SMALL, "0-7", 8, "0-7"),
        (SMALL, "0,2,7", 2, "0,2"),  # no core is whole
        (SMALL, "0,2,5-7", 3, "0,2,6"),
        # No second threads, or as neighbours
        (SINGLE_THREADED, "0-7", 3, "0-2"),
        (SINGLE_THREADED, "2-7", 3, "2-4"),
        (NEIGHBOURS, "0-7", 2, "0-1"),
        (NEIGHBOURS, "1-7", 2, "2-3"),
        (NEIGHBOURS, "1-7", 3, "1-3"),
        # Sockets: the fullest first, whole ones where they are needed whole
        (TWO_SOCKETS, "0-23", 2, "0,12"),
        (TWO_SOCKETS, "1-23", 2, "1,13"),
        (TWO_SOCKETS, "0-23", 12, "0-5,12-17"),
        (TWO_SOCKETS, "1-23", 12, "6-11,18-23"),
        (TWO_SOCKETS, "0-23", 14, "0-6,12-18"),
        (TWO_SOCKETS, "6-8,12-23", 2, "6,18"),
        (TWO_SOCKETS, "0-5,12-17,20", 1, "20"),
        (TWO_SOCKETS, "0-5,12-17,20", 2, "0,12"),  # a core is worth more than the fuller socket
        (TWO_SOCKETS, "0-11", 8, "0-7"),
        (TWO_SOCKETS, "0,2,4,6-11", 4, "0,2,4,6"),
        # NUMA nodes inside of sockets
        (FOUR_NODES, "0-31", 8, "0-3,16-19"),
        (FOUR_NODES, "0-31", 16, "0-7,16-23"),
        (FOUR_NODES, "1-31", 8, "4-7,20-23"),
        (FOUR_NODES, "1-31", 16, "8-15,24-31"),
        (FOUR_NODES, "1-31", 10, "1,4-7,17,20-23"),
        (FOUR_NODES, "0-31", 9, "0-4,16-19"),
        (FOUR_NODES, "4-31", 4, "4-5,20-21"),
        # Hybrid machines: small cores are the scarcest; and cores with one thread online
        (HYBRID, "0-11", 1, "8"),
        (HYBRID, "0-11", 2, "8-9"),
        (HYBRID, "0-7", 2, "0,4"),
        (HYBRID, "0-11", 6, "0,4,8-11"),
        (PARTLY_OFFLINE, "0-1,3-6", 1, "3"),
        (PARTLY_OFFLINE, "0-1,3-6", 2, "3,6"),
        (PARTLY_OFFLINE, "0-1,3-6", 3, "0,3,6"),
    ],
)
def test_cpus_are_packed(shape: Shape, free: str, count: int, cpus: str) -> None:
    assert taken(shape, free, count) == cpus


@pytest.mark.parametrize(
    ("shape", "free", "count", "cpus"),
    [
        (ONE_SOCKET_OF_A_NODE, "0-7", 2, "0,4"),
        (ONE_SOCKET_OF_A_NODE, "0-7", 4, "0-1,4-5"),
        (ONE_SOCKET_OF_A_NODE, "0-7", 6, "0-4,6"),
        (TWO_SOCKETS, "0-23", 14, "0-3,6-9,12-14,18-20"),
        (TWO_SOCKETS, "0-23", 16, "0-3,6-9,12-15,18-21"),
        (TWO_SOCKETS, "1-23", 13, "1-3,6-9,13-15,18-20"),
        (TWO_SOCKETS, "1-23", 2, "6,18"),  # the emptier node
        (FOUR_NODES, "0-31", 12, "0-2,4-6,16-18,20-22"),
        (FOUR_NODES, "0-31", 18, "0-2,4-6,8-10,16-18,20-22,24-26"),
        (FOUR_NODES, "0-31", 32, "0-31"),
        (FOUR_NODES, "0-3,8,16-19", 9, "0-3,8,16-19"),  # no equal parts
        (EIGHT_NODES, "0-511", 128, "0-63,256-319"),
    ],
)
def test_cpus_are_distributed_over_the_fewest_numa_nodes(
    shape: Shape, free: str, count: int, cpus: str
) -> None:
    assert taken(shape, free, count, "distribute_cpus_across_numa") == cpus


@pytest.mark.parametrize(
    ("shape", "free", "count", "cpus"),
    [
        (TWO_SOCKETS, "0-23", 14, "0-3,6-8,12-15,18-20"),
        (TWO_SOCKETS, "0-23", 13, "0-6,12-17"),  # no whole cores: as packed
        (FOUR_NODES, "0-31", 18, "0-2,4-6,8-10,16-18,20-22,24-26"),
    ],
)
def test_whole_cores_are_distributed_whole(shape: Shape, free: str, count: int, cpus: str) -> None:
    options = ("distribute_cpus_across_numa", "full_pcpus_only")
    assert taken(shape, free, count, *options) == cpus


@pytest.mark.parametrize(
    ("shape", "free", "count", "cpus"),
    [
        (SMALL, "0-7", 2, "0-1"),
        (SMALL, "0-7", 4, "0-3"),
        (SMALL, "0-7", 5, "0-4"),
        (SMALL, "1-7", 4, "1-4"),
        (NEIGHBOURS, "0-7", 3, "0,2,4"),
        (TWO_SOCKETS, "0-23", 4, "0-3"),
        (TWO_SOCKETS, "0-23", 12, "0-5,12-17"),  # a whole node is a whole node
        (SINGLE_THREADED, "0-7", 3, "0-2"),
    ],
)
def test_cpus_are_distributed_over_cores(shape: Shape, free: str, count: int, cpus: str) -> None:
    assert taken(shape, free, count, "distribute_cpus_across_cores") == cpus


@pytest.mark.parametrize(
    ("shape", "free", "count", "cpus"),
    [
        (SPLIT_CACHES, "0-15", 2, "0,8"),
        (SPLIT_CACHES, "0-15", 4, "0-1,8-9"),
        (SPLIT_CACHES, "1-15", 4, "2-3,10-11"),  # a whole cache, not what is left of one
        (SPLIT_CACHES, "1-15", 2, "1,9"),  # what is left of one is enough
        (SPLIT_CACHES, "1-15", 3, "1,8-9"),
        (SPLIT_CACHES, "2-3,9-11", 3, "2-3,10"),  # the fuller cache alone has enough
        (SPLIT_CACHES, "0-15", 6, "0-2,8-10"),
        (SPLIT_CACHES, "1,3,5-15", 4, "6-7,14-15"),
        (SPLIT_CACHES, "1,3,5,7,9,11,13,15", 4, "1,3,9,11"),  # as packed
        (SMALL, "0-7", 2, "0,4"),
    ],
)
def test_cpus_share_a_cache_where_they_can(shape: Shape, free: str, count: int, cpus: str) -> None:
    assert taken(shape, free, count, "prefer_align_cpus_by_uncorecache") == cpus


def test_without_that_option_cpus_of_one_container_may_be_of_two_caches() -> None:
    assert taken(SPLIT_CACHES, "1-15", 4) == "1-2,9-10"


@pytest.mark.parametrize("option", ["", "distribute_cpus_across_numa"])
def test_more_than_there_is_cannot_be_had(option: str) -> None:
    with pytest.raises(NotEnoughCpusError) as raised:
        taken(SMALL, "1-3", 4, *filter(None, [option]))
    assert str(raised.value) == (
        "not enough cpus available to satisfy request: requested=4, available=3"
    )
