"""Hints of CPUs and memory are those that a search over all choices on a small machine finds.

The searches try every choice of CPUs, and every way to take memory from nodes. They know nothing of
how the drafts count.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.resource_managers.pods import a_pod, guaranteed
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.k8s import Container, Pod, Quantity, ResourceRequirements
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.resource_managers.cpu_draft import CPU, CpuDraft, StaticCpuPolicy
from trio_kubelet.resource_managers.hints import TopologyHint, mask_of, nodes_in
from trio_kubelet.resource_managers.machine_topology import Cpu, MachineTopology
from trio_kubelet.resource_managers.memory_draft import (
    MemoryBlock,
    MemoryDraft,
    NodeMemory,
    StaticMemoryPolicy,
)
from trio_kubelet.resource_managers.placement import RefusedError

MOST_CPUS = 8
NODES = 3
GIB = 1 << 30
RESOURCES = ("memory", "hugepages-2Mi")
SETS_OF_NODES = [
    nodes for size in range(1, NODES + 1) for nodes in combinations(range(NODES), size)
]

Nodes = frozenset[int]


def lasting(pod: Pod) -> list[str]:
    """The names of the containers that keep what they have until the pod ends."""
    sidecars = [each.name for each in pod.spec.init_containers if is_sidecar(each)]
    return [*sidecars, *(each.name for each in pod.spec.containers)]


def at_once(pod: Pod, amounts: Mapping[str, int]) -> int:
    """The most that a pod has at any moment, if its containers have these amounts."""
    moments, sidecars = [0], 0
    for each in pod.spec.init_containers:
        amount = amounts.get(each.name, 0)
        moments.append(sidecars + amount)
        sidecars += amount if is_sidecar(each) else 0
    moments.append(sidecars + sum(amounts.get(each.name, 0) for each in pod.spec.containers))
    return max(moments)


# CPUs


@st.composite
def machines(draw: st.DrawFn) -> MachineTopology:
    """Machines whose nodes differ in size: each core of one or two CPUs is anywhere."""
    cpus: list[Cpu] = []
    for node in range(NODES):
        for _ in range(draw(st.integers(0 if cpus else 1, 2))):
            first = len(cpus)
            cpus += [
                Cpu(id=first + thread, core=first, cache=-1, node=node, socket=0)
                for thread in range(draw(st.integers(1, 2)))
            ]
    return MachineTopology(tuple(cpus[:MOST_CPUS]))


@st.composite
def machines_of_sockets(draw: st.DrawFn) -> MachineTopology:
    """Machines of two sockets with two nodes each, which are of one size."""
    each = draw(st.integers(1, 2))
    return MachineTopology(
        tuple(
            Cpu(id=cpu, core=cpu, cache=-1, node=cpu // each, socket=cpu // each // 2)
            for cpu in range(4 * each)
        )
    )


@st.composite
def cpu_pods(draw: st.DrawFn) -> Pod:
    counts = st.integers(1, 4).map(str)
    init = [
        guaranteed(f"i{number}", draw(counts), sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 2)))
    ]
    return a_pod("u", *draw(st.lists(counts, min_size=1, max_size=2)), init=tuple(init))


@frozen
class CpuSearch:
    """A search over all choices of CPUs."""

    topology: MachineTopology
    by_socket: bool = False

    def hints(self, count: int, free: Collection[int], used: Collection[int]) -> set[TopologyHint]:
        """Those of a container. `used` are CPUs of its pod, of whose nodes its own are, too."""
        needed = {
            self.nodes((*chosen, *used)) for chosen in combinations(sorted({*free, *used}), count)
        }
        least = min(map(self.extent, self.choices(count)), default=0)
        return {
            TopologyHint(mask_of(nodes), preferred=self.extent_of_nodes(nodes) == least)
            for nodes in self.sets_of_nodes()
            if any(each <= nodes for each in needed)
        }

    def choices(self, count: int) -> Iterator[tuple[int, ...]]:
        """All choices on the machine if it were empty."""
        return combinations(sorted(self.topology.all), count)

    def nodes(self, cpus: Iterable[int]) -> Nodes:
        node_of = {cpu.id: cpu.node for cpu in self.topology.cpus}
        return frozenset(node_of[each] for each in cpus)

    def sets_of_nodes(self) -> Iterator[Nodes]:
        nodes = sorted({cpu.node for cpu in self.topology.cpus})
        for size in range(1, len(nodes) + 1):
            yield from map(frozenset, combinations(nodes, size))

    def extent(self, cpus: Iterable[int]) -> int:
        return self.extent_of_nodes(self.nodes(cpus))

    def extent_of_nodes(self, nodes: Nodes) -> int:
        """The number of nodes, or that of their sockets."""
        if not self.by_socket:
            return len(nodes)
        return len({cpu.socket for cpu in self.topology.cpus if cpu.node in nodes})


@given(
    st.one_of(
        st.tuples(machines(), st.sampled_from(("", "full_pcpus_only"))),
        st.tuples(machines_of_sockets(), st.just("align_by_socket")),
    ),
    cpu_pods(),
    st.data(),
)
def test_hints_of_cpus_are_those_of_a_search_over_all_choices(
    at: tuple[MachineTopology, str], pod: Pod, data: st.DataObject
) -> None:
    topology, option = at
    some = st.frozensets(st.sampled_from(sorted(topology.all)), max_size=4)
    reserved, assigned = data.draw(some, label="reserved"), data.draw(some, label="assigned")
    policy = StaticCpuPolicy(
        topology=topology,
        reserved=reserved,
        options=CpuPolicyOptions(**({option: True} if option else {})),
    )
    free = topology.all - reserved - assigned
    if option == "full_pcpus_only":
        core_of = {cpu.id: cpu.core for cpu in topology.cpus}
        broken = {core_of[each] for each in topology.all - free}
        free = frozenset(each for each in free if core_of[each] not in broken)
    search = CpuSearch(topology, by_socket=option == "align_by_socket")
    draft = CpuDraft(pod, policy, policy.free(assigned))
    counts = {each.name: cpus_asked_for(each) for each in pod.spec.admitted_containers}
    check(draft.pod_hints().get(CPU), search.hints(at_once(pod, counts), free, ()))
    held: set[int] = set()
    again: set[int] = set()
    for container in pod.spec.admitted_containers:
        found = draft.hints(container)[CPU]
        check(found, search.hints(counts[container.name], free - held, again))
        try:
            draft.take(container, data.draw(st.sampled_from([None, *chosen_from(found)])))
        except RefusedError:
            return
        taken = draft.chosen[container.name]
        held |= taken
        again = again - taken if container.name in lasting(pod) else again | taken
    later = CpuDraft(pod, policy, frozenset(), known=dict(draft.chosen))
    for container in pod.spec.admitted_containers:
        known = draft.chosen[container.name]
        check(later.hints(container)[CPU], search.hints(len(known), known, ()))


def cpus_asked_for(container: Container) -> int:
    assert container.resources is not None
    return container.resources.requests[CPU].value


def chosen_from(hints: Iterable[TopologyHint] | None) -> list[int | None]:
    return [each.nodes for each in hints or ()]


def check(found: Sequence[TopologyHint] | None, expected: set[TopologyHint]) -> None:
    """Compare hints; each is told once."""
    assert found is not None
    assert set(found) == expected
    assert len(found) == len(expected)


# Memory


@st.composite
def memories(draw: st.DrawFn) -> StaticMemoryPolicy:
    """Nodes with up to three blocks of each resource for containers, a GiB each."""
    sizes = st.integers(0, 3).map(GIB.__mul__)
    return StaticMemoryPolicy(
        {
            node: {
                name: NodeMemory(total=size, reserved=0, allocatable=size)
                for name in RESOURCES
                for size in (draw(sizes),)
            }
            for node in range(NODES)
        }
    )


@st.composite
def others_blocks(draw: st.DrawFn, policy: StaticMemoryPolicy) -> list[MemoryBlock]:
    """What other pods have: of groups without a node in common, at most what these have."""
    group_of = draw(st.tuples(*[st.integers(0, NODES - 1)] * NODES), label="groups")
    blocks = []
    for group in sorted(set(group_of)):
        nodes = [node for node in range(NODES) if group_of[node] == group]
        for name in RESOURCES:
            there = sum(policy.nodes[node][name].allocatable for node in nodes) // GIB
            size = draw(st.just(0) | st.integers(0, there)) * GIB
            blocks.append(MemoryBlock(nodes=mask_of(nodes), resource=name, size_bytes=size))
    return blocks


@st.composite
def memory_pods(draw: st.DrawFn) -> Pod:
    def container(name: str, *, sidecar: bool = False) -> Container:
        gib = zip(RESOURCES, (draw(st.integers(1, 4)), draw(st.integers(0, 2))), strict=True)
        amounts = {name: Quantity(f"{size}Gi") for name, size in gib if size}
        requests = {CPU: Quantity("500m"), **amounts}
        resources = ResourceRequirements(requests=requests, limits=requests)
        return evolve(guaranteed(name, "500m", sidecar=sidecar), resources=resources)

    init = [
        container(f"i{number}", sidecar=draw(st.booleans()))
        for number in range(draw(st.integers(0, 2)))
    ]
    return a_pod(
        "u", *(container(f"c{n}") for n in range(draw(st.integers(1, 2)))), init=tuple(init)
    )


@frozen
class MemorySearch:
    """A search over all ways to take blocks of one GiB from nodes, each of which has some."""

    policy: StaticMemoryPolicy

    def hints(
        self, wanted: Mapping[str, int], held: Iterable[MemoryBlock], groups: Collection[Nodes]
    ) -> set[TopologyHint]:
        """Those of a container. `groups` are in use, for `held` and for what is used again."""
        return {
            TopologyHint(mask_of(nodes), preferred=len(nodes) == self.fewest(wanted))
            for nodes in map(frozenset, SETS_OF_NODES)
            if all(nodes == group or not nodes & group for group in groups)
            and self.fits(nodes, wanted, [each for each in held if nodes_of(each) == nodes])
        }

    def fewest(self, wanted: Mapping[str, int]) -> int:
        """The number of nodes of which an empty machine needs at least one for this."""
        sizes = (len(nodes) for nodes in SETS_OF_NODES if self.fits(nodes, wanted, ()))
        return min(sizes, default=0)

    def fits(
        self, nodes: Collection[int], wanted: Mapping[str, int], held: Collection[MemoryBlock]
    ) -> bool:
        """True if some way to take blocks of each node comes to what is wanted and held."""
        return all(
            size + sum(each.size_bytes for each in held if each.resource == name)
            in set(map(sum, self.ways(nodes, name)))
            for name, size in wanted.items()
        )

    def ways(self, nodes: Collection[int], name: str) -> Iterator[tuple[int, ...]]:
        """The sizes that can be taken of each of these nodes."""
        return product(
            *(range(0, self.policy.nodes[node][name].allocatable + 1, GIB) for node in nodes)
        )


def nodes_of(block: MemoryBlock) -> Nodes:
    return frozenset(nodes_in(block.nodes))


def memory_asked_for(container: Container) -> dict[str, int]:
    assert container.resources is not None
    requests = container.resources.requests
    return {name: requests[name].value for name in RESOURCES if name in requests}


@given(memories(), memory_pods(), st.data())
def test_hints_of_memory_are_those_of_a_search_over_all_ways_to_take_it(
    policy: StaticMemoryPolicy, pod: Pod, data: st.DataObject
) -> None:
    others = data.draw(others_blocks(policy), label="others")
    search = MemorySearch(policy)
    draft = MemoryDraft(pod, policy, others)
    groups = {nodes_of(each) for each in others if each.size_bytes}
    wanted = {each.name: memory_asked_for(each) for each in pod.spec.admitted_containers}
    together = {
        name: size
        for name in RESOURCES
        if (size := at_once(pod, {each: sizes.get(name, 0) for each, sizes in wanted.items()}))
    }
    check_memory(draft.pod_hints(), together, search.hints(together, others, groups))
    held = list(others)
    for container in pod.spec.admitted_containers:
        found, sizes = draft.hints(container), wanted[container.name]
        check_memory(found, sizes, search.hints(sizes, held, groups))
        chosen = data.draw(st.sampled_from([None, *chosen_from(found["memory"])]))
        try:
            draft.take(container, chosen)
        except RefusedError:
            return
        blocks = draft.chosen[container.name]
        groups |= {nodes_of(each) for each in blocks}
        held += blocks if container.name in lasting(pod) else ()
    later = MemoryDraft(pod, policy, others, known=dict(draft.chosen))
    for container in pod.spec.admitted_containers:
        (nodes,) = {nodes_of(each) for each in draft.chosen[container.name]}
        sizes = wanted[container.name]
        hint = TopologyHint(mask_of(nodes), preferred=len(nodes) == search.fewest(sizes))
        check_memory(later.hints(container), sizes, {hint})


def check_memory(
    found: Mapping[str, Sequence[TopologyHint] | None],
    wanted: Collection[str],
    expected: set[TopologyHint],
) -> None:
    """Compare the hints of each resource: what is of one pod is of the same nodes."""
    assert set(found) == set(wanted)
    for hints in found.values():
        check(hints, expected)
