"""Memory and huge pages of NUMA nodes for the containers of one Guaranteed pod. Pure.

A block is an amount that a container has of a group of nodes: of one node, or of several where one
has not enough. A node belongs to one group at a time, so what is promised of a node is not given
away by way of a larger group. Init containers run one after the other, so what they have is used
again by what runs later; a sidecar keeps its own. A pod with resources of its own may have its
memory as one part (`pod_level.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from attrs import define, evolve, field, frozen

from trio_kubelet.config.parts import MemoryReservation
from trio_kubelet.config.topology_policy import MOST_NODES
from trio_kubelet.k8s import HUGEPAGES_PREFIX, Container, Pod, Quantity
from trio_kubelet.k8s.totals import (
    container_requests,
    is_sidecar,
    most_at_once,
    passing_containers,
)
from trio_kubelet.resource_managers.hints import (
    Hints,
    NodeMask,
    by_size,
    hints_by_size,
    mask_of,
    masks_within,
    nodes_in,
    sums_over,
)
from trio_kubelet.resource_managers.machine_topology import MachineTopology
from trio_kubelet.resource_managers.placement import unexpected_refusal
from trio_kubelet.resource_managers.pod_level import (
    Amounts,
    PodLevel,
    guaranteed_containers,
    has_slices,
    is_served_whole,
    partitioned_memory,
)
from trio_kubelet.resources.pod_resources import whole_requests

MEMORY = "memory"
NO_MEMORY = (
    "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is "
    "available"
)


@frozen(kw_only=True)
class MemoryBlock:
    """An amount of one resource from a group of nodes."""

    nodes: NodeMask
    resource: str
    size_bytes: int


ContainerBlocks = Mapping[str, tuple[MemoryBlock, ...]]
"""The blocks of a pod's containers, by their names."""


@frozen(kw_only=True)
class NodeMemory:
    """The bytes of one resource that a node has, and those that the system keeps of it."""

    total: int
    reserved: int
    allocatable: int


@frozen
class StaticMemoryPolicy:
    """The policy `Static` on one machine: what each node has of each resource."""

    nodes: Mapping[int, Mapping[str, NodeMemory]]
    pod_level: PodLevel = PodLevel.SHARED

    @cached_property
    def sums(self) -> Mapping[str, Mapping[NodeMask, int]]:
        """The bytes of each resource that containers can have of each set of nodes."""
        resources = {resource for memory in self.nodes.values() for resource in memory}
        return {resource: sums_over(self.allocatable(resource)) for resource in resources}

    def fewest_nodes(self, wanted: Amounts) -> int:
        """The number of nodes that one needs at least for so much of each; 0 if all have less."""
        return next(
            (
                mask.bit_count()
                for mask in self._smallest_first
                if all(self.sums[name][mask] >= size for name, size in wanted.items())
            ),
            0,
        )

    @cached_property
    def _smallest_first(self) -> tuple[NodeMask, ...]:
        return tuple(sorted(masks_within(tuple(self.nodes)), key=by_size))

    def allocatable(self, resource: str) -> Mapping[int, int]:
        """The bytes of a resource that containers can have of each node."""
        return {
            node: memory[resource].allocatable if resource in memory else 0
            for node, memory in self.nodes.items()
        }


def allocatable_blocks(policy: StaticMemoryPolicy) -> tuple[MemoryBlock, ...]:
    """All that containers can have of each node, whoever has it."""
    return tuple(
        MemoryBlock(nodes=mask_of([node]), resource=resource, size_bytes=memory.allocatable)
        for node, resources in policy.nodes.items()
        for resource, memory in resources.items()
        if memory.allocatable
    )


def static_memory_policy(
    topology: MachineTopology,
    reserved: Iterable[MemoryReservation],
    node_reserved: Amounts,
    pod_level: PodLevel = PodLevel.SHARED,
) -> StaticMemoryPolicy:
    """Make the policy of `reservedMemory`, which must come to what the node reserves in all.

    `node_reserved` is that: kubeReserved, systemReserved and hard eviction thresholds. Raises
    ValueError for reservations that do not fit them or the machine.
    """
    if (count := len(topology.numa_nodes)) > MOST_NODES:
        raise ValueError(
            f"unsupported on machines with more than {MOST_NODES} NUMA Nodes: this one has "
            f"{count}; set memoryManagerPolicy to None"
        )
    by_node: dict[int, dict[str, int]] = {node.id: {} for node in topology.numa_nodes}
    for reservation in reserved:
        if reservation.numa_node not in by_node:
            raise ValueError(
                "the reserved memory configuration references a NUMA node "
                f"{reservation.numa_node} that does not exist on this machine"
            )
        for resource, amount in reservation.limits.items():
            by_node[reservation.numa_node][resource] = amount.value
    for resource in sorted({*node_reserved, *(name for each in by_node.values() for name in each)}):
        total = sum(each.get(resource, 0) for each in by_node.values())
        wanted = node_reserved.get(resource, 0)
        if total != wanted:
            raise ValueError(
                f'the total amount "{_told(total)}" of type "{resource}" is not equal to the value '
                f'"{_told(wanted)}" determined by Node Allocatable feature; change reservedMemory'
            )
    nodes: dict[int, Mapping[str, NodeMemory]] = {}
    for node in topology.numa_nodes:
        pages = {page_resource(size): amount for size, amount in node.hugepages.items()}
        kept = by_node[node.id]
        memory = {
            name: NodeMemory(
                total=amount,
                reserved=kept.get(name, 0),
                allocatable=max(0, amount - kept.get(name, 0)),
            )
            for name, amount in pages.items()
        }
        # Huge pages are set aside from memory.
        left = node.memory_bytes - kept.get(MEMORY, 0) - sum(pages.values())
        memory[MEMORY] = NodeMemory(
            total=node.memory_bytes, reserved=kept.get(MEMORY, 0), allocatable=max(0, left)
        )
        nodes[node.id] = memory
    return StaticMemoryPolicy(nodes, pod_level)


def page_resource(page_size_bytes: int) -> str:
    """The name of huge pages as a resource: `hugepages-2Mi`."""
    return f"{HUGEPAGES_PREFIX}{Quantity.from_bytes(page_size_bytes).canonical}"


def wanted_memory(pod: Pod, pod_level: PodLevel = PodLevel.SHARED) -> Mapping[str, Amounts]:
    """The bytes that containers are to have from certain nodes, by the names of those that are.

    For all at once: the class of a pod is told from all of its containers.
    """
    if not has_slices(pod, pod_level):
        return {}
    wanted = {each.name: _amounts(container_requests(each)) for each in guaranteed_containers(pod)}
    return {name: amounts for name, amounts in wanted.items() if amounts}


def whole_memory(pod: Pod, pod_level: PodLevel) -> Amounts:
    """The bytes that a pod is to have as one part; none if its containers are served one by one."""
    return _amounts(whole_requests(pod)) if is_served_whole(pod, pod_level) else {}


def _amounts(requests: Mapping[str, Quantity]) -> Amounts:
    return {
        name: amount.value
        for name, amount in requests.items()
        if (name == MEMORY or name.startswith(HUGEPAGES_PREFIX)) and amount.value
    }


def wanted_at_once(pod: Pod, pod_level: PodLevel = PodLevel.SHARED) -> Amounts:
    """The bytes that a pod has at any one time, at the most."""
    whole = whole_memory(pod, pod_level)
    return whole or most_at_once(pod.spec, wanted_memory(pod, pod_level))


@define
class MemoryDraft:
    """The blocks of one pod's containers, chosen one after the other; kept by nobody yet.

    `used` are the blocks of all other pods, `known` those that containers of this pod have already,
    `wanted` the amounts that its containers are to have. `whole` are the blocks of a pod that has
    its memory as one part, as they are known and then as they are chosen.
    See `Draft` for what the methods promise.
    """

    pod: Pod
    policy: StaticMemoryPolicy
    used: Sequence[MemoryBlock] = ()
    known: ContainerBlocks = field(factory=dict)
    wanted: Mapping[str, Amounts] = field()
    whole: tuple[MemoryBlock, ...] = ()
    chosen: dict[str, tuple[MemoryBlock, ...]] = field(init=False, factory=dict)
    _passing: frozenset[str] = field(init=False)
    _held: dict[tuple[NodeMask, str], int] = field(init=False, factory=dict)
    _reusable: dict[tuple[NodeMask, str], int] = field(init=False, factory=dict)

    @wanted.default
    def _wanted_by_pod(self) -> Mapping[str, Amounts]:
        return wanted_memory(self.pod, self.policy.pod_level)

    @_passing.default
    def _passing_of_pod(self) -> frozenset[str]:
        return passing_containers(self.pod.spec)

    def __attrs_post_init__(self) -> None:
        known = self.whole or [each for blocks in self.known.values() for each in blocks]
        for block in (*self.used, *known):
            key = (block.nodes, block.resource)
            self._held[key] = self._held.get(key, 0) + block.size_bytes

    def demands(self, container: Container) -> int:
        return len(self.wanted.get(container.name, {}))

    def hints(self, container: Container) -> Hints:
        known = self.known.get(container.name, ())
        return self._hints_of(self.wanted.get(container.name, {}), known)

    def pod_hints(self) -> Hints:
        known = self.whole or [block for blocks in self.known.values() for block in blocks]
        return self._hints_of(wanted_at_once(self.pod, self.policy.pod_level), known)

    def take(self, container: Container, nodes: NodeMask | None) -> None:
        whole = whole_memory(self.pod, self.policy.pod_level)
        if whole and not self.known:
            self._take_whole(whole, nodes)
            return
        wanted = self.wanted.get(container.name, {})
        blocks = self.known.get(container.name)
        if blocks is None and wanted:
            blocks = self._taken(wanted, nodes)
        if not blocks:
            return
        self.chosen[container.name] = blocks
        if container.name in self._passing:
            for block in blocks:
                key = (block.nodes, block.resource)
                self._reusable[key] = self._reusable.get(key, 0) + block.size_bytes

    def _take_whole(self, whole: Amounts, nodes: NodeMask | None) -> None:
        """Choose the one part of the pod with its first container, and divide it."""
        if self.chosen:
            return
        parts = partitioned_memory(self.pod, whole, self.wanted)
        self.whole = self.whole or self._taken(whole, nodes)
        group = blocks_mask(self.whole)
        self.chosen = {name: _blocks(group, part) for name, part in parts.items()}

    def _taken(self, wanted: Amounts, nodes: NodeMask | None) -> tuple[MemoryBlock, ...]:
        group = self._group(wanted, nodes)
        for name, size in wanted.items():
            self._take(group, name, size)
        return _blocks(group, wanted)

    def _take(self, group: NodeMask, name: str, size: int) -> None:
        """Take so much, what init containers had first; their blocks become smaller by that."""
        again = min(size, self._reusable.get((group, name), 0))
        self._held[group, name] = self._held.get((group, name), 0) + size - again
        if again:
            self._reusable[group, name] -= again
        for container in self.pod.spec.init_containers:
            if not again or is_sidecar(container):
                continue
            blocks = []
            for block in self.chosen.get(container.name, ()):
                if (block.nodes, block.resource) == (group, name):
                    part = min(again, block.size_bytes)
                    again -= part
                    block = evolve(block, size_bytes=block.size_bytes - part)
                blocks.append(block)
            self.chosen[container.name] = tuple(blocks)

    def _group(self, wanted: Amounts, nodes: NodeMask | None) -> NodeMask:
        """The group to take from: the nodes that were chosen, with more if they have not enough."""
        if nodes is not None and self._possible(wanted, (nodes,)):
            return nodes
        possible = self._possible(wanted, masks_within(tuple(self.policy.nodes)))
        if nodes is not None:
            possible = [mask for mask in possible if mask & nodes == nodes]
        if not possible:
            raise unexpected_refusal(NO_MEMORY, is_of_memory=True)
        fewest = self.policy.fewest_nodes(wanted)
        preferred = [mask for mask in possible if mask.bit_count() == fewest]

        def rank(group: NodeMask) -> tuple[float, ...]:
            is_used_again = any(self._reusable.get((group, name)) for name in wanted)
            return not is_used_again, *by_size(group)

        return min(preferred or possible, key=rank)

    def _hints_of(self, wanted: Amounts, known: Sequence[MemoryBlock]) -> Hints:
        """The groups that can give all of it, or the nodes that gave it before.

        Preferred are those of as few nodes as any.
        """
        if not wanted:
            return {}
        nodes = tuple(self.policy.nodes)
        hints = hints_by_size(nodes, self.policy.fewest_nodes(wanted))
        groups = [blocks_mask(known)] if known else self._possible(wanted, masks_within(nodes))
        hinted = [hints[group] for group in groups]
        return dict.fromkeys(wanted, hinted)

    def _possible(self, wanted: Amounts, masks: Iterable[NodeMask]) -> list[NodeMask]:
        """The groups among some that can give all of it: such as there are, and of unused nodes."""
        if not wanted.keys() <= self.policy.sums.keys():
            return []
        groups = {group for (group, _), size in self._held.items() if size}
        in_use = mask_of(node for group in groups for node in nodes_in(group))
        possible = [mask for mask in masks if not mask & in_use or mask in groups]
        for name, wanted_bytes in wanted.items():
            there = self.policy.sums[name]
            held = {
                group: self._held.get((group, name), 0) - self._reusable.get((group, name), 0)
                for group in groups
            }
            possible = [
                mask for mask in possible if there[mask] - held.get(mask, 0) >= wanted_bytes
            ]
        return possible


def _blocks(group: NodeMask, sizes: Amounts) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(nodes=group, resource=name, size_bytes=size) for name, size in sizes.items()
    )


def blocks_mask(blocks: Iterable[MemoryBlock]) -> NodeMask:
    """All nodes that some of these blocks are of."""
    return mask_of(node for block in blocks for node in nodes_in(block.nodes))


def _told(size: int) -> str:
    return Quantity.from_bytes(size).canonical
