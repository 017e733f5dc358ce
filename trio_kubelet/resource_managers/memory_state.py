"""`memory_manager_state`: the record of memory blocks, in the form of the Go kubelet.

Only the blocks count when it is read: what they leave of each node is worked out anew, as the size
of a machine's nodes may be another after each boot. What does not fit is repaired, with a line for
each thing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from attrs import evolve, field, frozen

from trio_kubelet.k8s.fnv import fnv1a_32
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.kernel.state_file import checked_name
from trio_kubelet.resource_managers.hints import NodeMask, mask_of, nodes_in
from trio_kubelet.resource_managers.memory_draft import (
    ContainerBlocks,
    MemoryBlock,
    StaticMemoryPolicy,
    blocks_mask,
)
from trio_kubelet.resource_managers.pod_level import PodLevel

FILE = "memory_manager_state"
NONE, STATIC = "None", "Static"
HIGHEST_NODE = 1023

Blocks = Mapping[str, ContainerBlocks]
"""The blocks by the pod's UID."""

Wholes = Mapping[str, tuple[MemoryBlock, ...]]
"""The blocks of pods that have their memory as one part, by UID."""


@frozen(kw_only=True)
class MemoryState:
    """One record. `machine` is what is left of each node, in the file's own words."""

    policy: str
    machine: Mapping[str, Any] = field(factory=dict, eq=False)
    blocks: Blocks = field(factory=dict)
    wholes: Wholes | None = None
    """None for a record without such."""


def memory_state(policy: StaticMemoryPolicy, blocks: Blocks, wholes: Wholes) -> MemoryState:
    """The record of these blocks, with what they leave of the machine."""
    machine: dict[str, Any] = {}
    every = [block for uid in blocks for block in held_blocks(uid, blocks, wholes)]
    left = {node: dict(_tables(policy, node)) for node in policy.nodes}
    for block in every:
        size = block.size_bytes
        for node in nodes_in(block.nodes):
            table = left[node].get(block.resource)
            if table is not None:
                part = min(size, table["free"])
                table["free"] -= part
                table["reserved"] += part
                size -= part
    for node in policy.nodes:
        groups = [block.nodes for block in every if block.nodes >> node & 1]
        machine[str(node)] = {
            "numberOfAssignments": len(groups),
            "memoryMap": dict(sorted(left[node].items())),
            "cells": [*nodes_in(groups[-1])] if groups else [node],
        }
    with_wholes = policy.pod_level is not PodLevel.SHARED
    return MemoryState(
        policy=STATIC, machine=machine, blocks=blocks, wholes=wholes if with_wholes else None
    )


def held_blocks(uid: str, blocks: Blocks, wholes: Wholes) -> Iterable[MemoryBlock]:
    """The blocks that a pod holds: its one part, or those of its containers."""
    return wholes.get(uid) or chain.from_iterable(blocks.get(uid, {}).values())


def printed(state: MemoryState) -> str:
    """Return the text of a file with this record."""
    content = {
        "policyName": state.policy,
        "machineState": state.machine,
        **({"entries": _entries(state.blocks)} if state.blocks else {}),
        **({"podEntries": _pod_entries(state.wholes)} if state.wholes else {}),
    }
    return go_json(
        {**content, "checksum": _checksum(content, with_wholes=state.wholes is not None)}
    )


def parsed(text: str) -> MemoryState:
    """Return the record in the text of a file. Raises ValueError if it is not whole."""
    try:
        content = json.loads(text)
        checksum = content.pop("checksum")
        state = MemoryState(
            policy=checked_name(content["policyName"]),
            machine=content["machineState"],
            blocks={
                checked_name(uid): {
                    checked_name(name): tuple(_block(each) for each in blocks)
                    for name, blocks in containers.items()
                }
                for uid, containers in (content.get("entries") or {}).items()
            },
        )
        if checksum in (0, _checksum(content, with_wholes=False)):
            return state
        wholes = {
            checked_name(uid): tuple(_block(each) for each in entry["memoryBlocks"])
            for uid, entry in (content.get("podEntries") or {}).items()
        }
        fits = checksum == _checksum(content, with_wholes=True)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it has another form") from error
    if not fits:
        raise ValueError("its checksum does not fit")
    return evolve(state, wholes=wholes)


def repaired(found: MemoryState, policy: StaticMemoryPolicy) -> tuple[MemoryState, tuple[str, ...]]:
    """Return the record with what can stay, and a line for each thing that did not fit."""
    if found.policy != STATIC:
        return MemoryState(policy=STATIC), ()
    kept: dict[str, ContainerBlocks] = {}
    wholes: dict[str, tuple[MemoryBlock, ...]] = {}
    lines: list[str] = []
    groups: set[NodeMask] = set()
    for uid, whole in (found.wholes or {}).items():
        parts = found.blocks.get(uid, {})
        problem = next(_problems(whole, policy, groups), "")
        theirs = blocks_mask(chain.from_iterable(parts.values()))
        if not problem and theirs & ~blocks_mask(whole):
            problem = "its containers had others"
        if problem:
            lines.append(f"pod {uid}: {problem}; it is assigned others")
            continue
        groups.update(block.nodes for block in whole)
        wholes[uid] = whole
        kept[uid] = parts
    for uid, containers in found.blocks.items():
        if uid in (found.wholes or {}):
            continue
        fitting: dict[str, tuple[MemoryBlock, ...]] = {}
        for name, blocks in containers.items():
            if problem := next(_problems(blocks, policy, groups), ""):
                lines.append(f"container {name} of pod {uid}: {problem}; it is assigned others")
                continue
            groups.update(block.nodes for block in blocks)
            fitting[name] = blocks
        if fitting:
            kept[uid] = fitting
    state = MemoryState(policy=STATIC, blocks=kept, wholes=wholes)
    return state, (*lines, *_overcommitted(kept, wholes, policy))


def _problems(
    blocks: tuple[MemoryBlock, ...], policy: StaticMemoryPolicy, groups: set[NodeMask]
) -> Iterator[str]:
    for block in blocks:
        nodes = nodes_in(block.nodes)
        gone = [node for node in nodes if block.resource not in policy.nodes.get(node, {})]
        if gone or not nodes:
            yield f"its {block.resource} is of NUMA nodes {_listed(gone)}, which have none"
        if any(group != block.nodes and group & block.nodes for group in groups):
            yield f"NUMA nodes {_listed(nodes)} are in a group with others"


def _overcommitted(blocks: Blocks, wholes: Wholes, policy: StaticMemoryPolicy) -> Iterator[str]:
    sums: dict[tuple[NodeMask, str], int] = {}
    for block in (block for uid in blocks for block in held_blocks(uid, blocks, wholes)):
        key = (block.nodes, block.resource)
        sums[key] = sums.get(key, 0) + block.size_bytes
    for (group, resource), size in sums.items():
        there = sum(policy.allocatable(resource)[node] for node in nodes_in(group))
        if size > there:
            yield (
                f"NUMA nodes {_listed(nodes_in(group))} have {there} bytes of {resource} for "
                f"containers, which have {size} and keep them"
            )


def _tables(policy: StaticMemoryPolicy, node: int) -> Iterator[tuple[str, dict[str, int]]]:
    for resource, memory in policy.nodes[node].items():
        table = {
            "total": memory.total,
            "systemReserved": memory.reserved,
            "allocatable": memory.allocatable,
            "reserved": 0,
            "free": memory.allocatable,
        }
        yield resource, table


def _entries(blocks: Blocks) -> dict[str, Any]:
    return {
        uid: {
            name: [_printed_block(block) for block in each]
            for name, each in sorted(containers.items())
        }
        for uid, containers in sorted(blocks.items())
    }


def _pod_entries(wholes: Wholes) -> dict[str, Any]:
    return {
        uid: {"memoryBlocks": [_printed_block(block) for block in blocks]}
        for uid, blocks in sorted(wholes.items())
    }


def _printed_block(block: MemoryBlock) -> dict[str, Any]:
    return {
        "numaAffinity": [*nodes_in(block.nodes)],
        "type": block.resource,
        "size": block.size_bytes,
    }


def _block(value: Mapping[str, Any]) -> MemoryBlock:
    nodes, size = value["numaAffinity"], value["size"]
    if not all(isinstance(node, int) and 0 <= node <= HIGHEST_NODE for node in nodes):
        raise ValueError("it has no numbers of NUMA nodes")
    if not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise ValueError("it has no size")
    return MemoryBlock(nodes=mask_of(nodes), resource=checked_name(value["type"]), size_bytes=size)


def _listed(nodes: object) -> str:
    return ",".join(map(str, nodes)) if isinstance(nodes, list | tuple) and nodes else "none"


def _checksum(content: Mapping[str, Any], *, with_wholes: bool) -> int:
    """The FNV-1a of the record as Go prints it, with or without the gate PodLevelResourceManagers.

    The two have other forms also where no pod has its memory as one part.
    """
    machine = sorted(content["machineState"].items(), key=lambda item: int(item[0]))
    nodes = " ".join(f"{node}:<*>{_printed_node(state)}" for node, state in machine)
    entries = " ".join(
        f"{uid}:map[{' '.join(_printed_container(*each) for each in sorted(containers.items()))}]"
        for uid, containers in sorted((content.get("entries") or {}).items())
    )
    text = (
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){content['policyName']} "
        f"MachineState:(state.NUMANodeMap)map[{nodes}] "
        f"Entries:(state.ContainerMemoryAssignments)map[{entries}] "
        f"{_printed_wholes(content) if with_wholes else ''}Checksum:(checksum.Checksum)0}}"
    )
    return fnv1a_32(text.encode())


def _printed_node(state: Mapping[str, Any]) -> str:
    tables = " ".join(
        f"{resource}:<*>{{TotalMemSize:(uint64){table['total']} "
        f"SystemReserved:(uint64){table['systemReserved']} "
        f"Allocatable:(uint64){table['allocatable']} Reserved:(uint64){table['reserved']} "
        f"Free:(uint64){table['free']}}}"
        for resource, table in sorted(state["memoryMap"].items())
    )
    return (
        f"{{NumberOfAssignments:(int){state['numberOfAssignments']} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{tables}] "
        f"Cells:([]int)[{_spaced(state['cells'])}]}}"
    )


def _printed_wholes(content: Mapping[str, Any]) -> str:
    wholes = " ".join(
        f"{uid}:{{MemoryBlocks:([]state.Block)[{_printed_blocks(entry['memoryBlocks'])}]}}"
        for uid, entry in sorted((content.get("podEntries") or {}).items())
    )
    return f"PodEntries:(state.PodMemoryAssignments)map[{wholes}] "


def _printed_container(name: str, blocks: list[Mapping[str, Any]]) -> str:
    return f"{name}:[{_printed_blocks(blocks)}]"


def _printed_blocks(blocks: list[Mapping[str, Any]]) -> str:
    return " ".join(
        f"{{NUMAAffinity:([]int)[{_spaced(block['numaAffinity'])}] "
        f"Type:(v1.ResourceName){block['type']} Size:(uint64){block['size']}}}"
        for block in blocks
    )


def _spaced(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))
