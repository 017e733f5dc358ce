"""The record of memory blocks: the Go kubelet's file, and repairs of what does not fit."""

import json
from typing import Any

import pytest

from tests.unit.resource_managers.machines import TWO_SOCKETS, Shape, machine
from trio_kubelet.resource_managers.memory_draft import (
    MEMORY,
    MemoryBlock,
    StaticMemoryPolicy,
    static_memory_policy,
)
from trio_kubelet.resource_managers.memory_state import (
    Blocks,
    MemoryState,
    memory_state,
    parsed,
    printed,
    repaired,
)

GIB = 1 << 30
POLICY = static_memory_policy(machine(TWO_SOCKETS), (), {})

# As the Go kubelet wrote it, and as its tests have it
WRITTEN = [
    '{"policyName":"None","machineState":{},"checksum":4236770233}',
    '{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":'
    '{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},'
    '"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory",'
    '"size":512}]}},"checksum":4215593881}',
    # With the gate PodLevelResourceManagers, by a Go kubelet 1.36.3.
    '{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":'
    '{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},'
    '"memory":{"total":8589934592,"systemReserved":52428800,"allocatable":8537505792,'
    '"reserved":1073741824,"free":7463763968}},"cells":[0]},"1":{"numberOfAssignments":0,'
    '"memoryMap":{"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,'
    '"free":0},"memory":{"total":8589934592,"systemReserved":0,"allocatable":8589934592,'
    '"reserved":0,"free":8589934592}},"cells":[1]}},"entries":{"u-mixed":{"a":'
    '[{"numaAffinity":[0],"type":"memory","size":268435456}],"b":[{"numaAffinity":[0],"type":'
    '"memory","size":805306368}],"c":[{"numaAffinity":[0],"type":"memory","size":'
    '805306368}]}},"podEntries":{"u-mixed":{"memoryBlocks":[{"numaAffinity":[0],"type":'
    '"memory","size":1073741824}]}},"checksum":2540711809}',
]


def block(nodes: int, gib: int, resource: str = MEMORY) -> MemoryBlock:
    return MemoryBlock(nodes=nodes, resource=resource, size_bytes=gib * GIB)


@pytest.mark.parametrize("text", WRITTEN)
def test_files_of_the_go_kubelet_are_read_and_written_byte_for_byte(text: str) -> None:
    assert printed(parsed(text)) == text


def test_what_blocks_leave_of_the_machine_is_in_the_file() -> None:
    shape = Shape(sockets=2, pages=512)
    policy = static_memory_policy(machine(shape), (), {})
    state = memory_state(
        policy,
        {
            "u": {"a": (block(0b11, 12), block(0b11, 1, "hugepages-2Mi"))},
            "v": {"b": (block(0b11, 1),)},
        },
        {},
    )
    assert parsed(printed(state)) == state
    content: dict[str, Any] = json.loads(printed(state))
    first, second = (content["machineState"][node] for node in "01")
    assert first["cells"] == second["cells"] == [0, 1]
    assert first["numberOfAssignments"] == second["numberOfAssignments"] == 3
    # The first node is filled before the second one.
    assert first["memoryMap"][MEMORY] == {
        "total": 10 * GIB,
        "systemReserved": 0,
        "allocatable": 9 * GIB,
        "reserved": 9 * GIB,
        "free": 0,
    }
    assert second["memoryMap"][MEMORY]["reserved"] == 4 * GIB
    assert first["memoryMap"]["hugepages-2Mi"]["free"] == 0
    assert second["memoryMap"]["hugepages-2Mi"]["free"] == GIB


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"policyName":"Static","machineState":{}}',
        '{"policyName":"Static","machineState":{},"checksum":1}',
        '{"policyName":"Static","machineState":[],"checksum":0}',
        '{"policyName":"Static","machineState":{"0":{}},"checksum":0}',
        '{"policyName":"Static","machineState":{},"entries":{"u":{"c":[{}]}},"checksum":0}',
        '{"policyName":"Static","machineState":{},"entries":{"u":{"c":[{"numaAffinity":[99999],'
        '"type":"memory","size":1}]}},"checksum":0}',
        '{"policyName":"Static","machineState":{},"entries":{"u":{"c":[{"numaAffinity":[0],'
        '"type":"memory","size":-1}]}},"checksum":0}',
        '{"policyName":"Static","machineState":{},"entries":{"u":{"c":[{"numaAffinity":[0],'
        '"type":"a/b","size":1}]}},"checksum":0}',
        '{"policyName":"Static","machineState":{},"entries":{"a/b":{"c":[]}},"checksum":0}',
    ],
)
def test_a_file_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(text)


def repair(blocks: Blocks, policy: StaticMemoryPolicy = POLICY) -> tuple[Blocks, list[str]]:
    kept, lines = repaired(MemoryState(policy="Static", blocks=blocks), policy)
    return kept.blocks, list(lines)


def test_blocks_stay_when_nodes_have_another_size_than_before() -> None:
    blocks: Blocks = {"u": {"c": (block(0b1, 9),)}}
    assert repair(blocks) == (blocks, [])
    smaller = static_memory_policy(machine(Shape(sockets=2, cores_per_node=6, gib=8)), (), {})
    kept, lines = repair(blocks, smaller)
    assert kept == blocks
    assert lines == [
        f"NUMA nodes 0 have {8 * GIB} bytes of memory for containers, which have {9 * GIB} and "
        "keep them"
    ]


def test_blocks_of_nodes_or_pages_that_are_gone_are_assigned_anew() -> None:
    blocks: Blocks = {
        "u": {"c": (block(0b100, 1),)},
        "v": {"c": (block(0b1, 1), block(0b1, 1, "hugepages-1Gi"))},
        "w": {"c": (block(0b1, 1),)},
    }
    kept, lines = repair(blocks)
    assert kept == {"w": blocks["w"]}
    assert lines == [
        "container c of pod u: its memory is of NUMA nodes 2, which have none; "
        "it is assigned others",
        "container c of pod v: its hugepages-1Gi is of NUMA nodes 0, which have none; "
        "it is assigned others",
    ]


def test_a_node_is_in_one_group_only() -> None:
    blocks: Blocks = {"u": {"c": (block(0b1, 1),)}, "v": {"c": (block(0b11, 1),)}}
    kept, lines = repair(blocks)
    assert kept == {"u": blocks["u"]}
    assert lines == [
        "container c of pod v: NUMA nodes 0,1 are in a group with others; it is assigned others"
    ]


def test_a_pod_whose_containers_have_memory_outside_its_one_part_is_assigned_others() -> None:
    whole, within = (block(0b1, 2),), {"c": (block(0b1, 1),)}
    blocks: Blocks = {
        "u": within,
        "v": {"c": (block(0b1, 1),), "gone": (block(0b100, 1),)},
        "w": {"c": (block(0b10, 1),)},
    }
    found = MemoryState(policy="Static", blocks=blocks, wholes=dict.fromkeys(blocks, whole))
    kept, lines = repaired(found, POLICY)
    assert (kept.blocks, kept.wholes) == ({"u": within}, {"u": whole})
    assert list(lines) == [
        f"pod {uid}: its containers had others; it is assigned others" for uid in "vw"
    ]


def test_under_the_policy_none_there_were_no_blocks() -> None:
    assert repaired(MemoryState(policy="None"), POLICY) == (MemoryState(policy="Static"), ())
