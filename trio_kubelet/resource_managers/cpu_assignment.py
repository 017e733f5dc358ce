"""The choice of CPUs for one container: topology, free CPUs, a number and rules in, CPUs out.

Packed, which is the default: whole NUMA nodes and sockets first, then whole caches where that is
asked for, then whole cores, then single threads; at each step the scarcest group goes first, so
that large ones stay whole for those who need them. Distributed over NUMA nodes: over the fewest
that have enough, in equal parts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from attrs import define, field, frozen

from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.resource_managers.cpu_sets import CpuSet
from trio_kubelet.resource_managers.machine_topology import Level, MachineTopology

NOTHING: CpuSet = frozenset()


@frozen
class NotEnoughCpusError(Exception):
    """Fewer CPUs are free than a container needs."""

    requested: int
    available: int

    def __str__(self) -> str:
        return (
            "not enough cpus available to satisfy request: "
            f"requested={self.requested}, available={self.available}"
        )


@frozen
class CpuChooser:
    """Chooses CPUs of one machine by the options of the static policy."""

    topology: MachineTopology
    options: CpuPolicyOptions = field(factory=CpuPolicyOptions)

    def take(self, free: CpuSet, count: int) -> CpuSet:
        """Return `count` of the free CPUs. Raises NotEnoughCpusError."""
        if count > len(free):
            raise NotEnoughCpusError(count, len(free))
        if not self.options.distribute_cpus_across_numa:
            return self._packed(free, count)
        step = self.topology.cpus_per_core if self.options.full_pcpus_only else 1
        if count % step:
            return self._packed(free, count)
        return self._distributed(free, count, step)

    def _packed(self, free: CpuSet, count: int) -> CpuSet:
        choice = _Choice(self.topology, set(free), count)
        for level in self.topology.outer_levels:
            choice.take_whole(level)
        if self.options.prefer_align_cpus_by_uncorecache:
            choice.take_whole(Level.CACHE)
            choice.take_from_one(Level.CACHE)
        if self.options.distribute_cpus_across_cores:
            choice.take_threads(across_cores=True)
        else:
            choice.take_whole(Level.CORE)
            choice.take_threads()
        return frozenset(choice.taken)

    def _distributed(self, free: CpuSet, count: int, step: int) -> CpuSet:
        """Equal parts of the fewest NUMA nodes that can give them; what is over by `step`.

        Of several such sets of nodes the one that leaves the nodes most evenly free.
        """
        nodes = {
            number: cpus & free
            for number, cpus in self.topology.groups[Level.NODE].items()
            if cpus & free
        }
        sizes = {number: len(cpus) for number, cpus in nodes.items()}
        for several in range(1, len(nodes) + 1):
            parts = (_parts(sizes, chosen, count, step) for chosen in combinations(nodes, several))
            best = min(
                (part for part in parts if part is not None),
                key=lambda part: _unevenness(sizes, part),
                default=None,
            )
            if best is not None:
                taken = (self._packed(nodes[number], part) for number, part in best.items())
                return frozenset().union(*taken)
        return self._packed(free, count)


@define
class _Choice:
    """A choice that goes on until enough is taken. `free` are the CPUs that are left."""

    topology: MachineTopology
    free: set[int]
    needed: int
    taken: set[int] = field(factory=set)

    def take_whole(self, level: Level) -> None:
        """Take groups that are free altogether and not larger than what is needed."""
        if self.needed < self.topology.smallest[level]:
            return
        for group in self._scarcest_first(level):
            if len(group) <= self.needed and group <= self.free:
                self._take(group)

    def take_from_one(self, level: Level) -> None:
        """Take all that is needed from the scarcest group that has it, if one has."""
        for group in self._scarcest_first(level) if self.needed else ():
            if len(group & self.free) >= self.needed:
                inside = _Choice(self.topology, self.free & group, self.needed)
                inside.take_whole(Level.CORE)
                inside.take_threads()
                self._take(inside.taken)
                return

    def take_threads(self, *, across_cores: bool = False) -> None:
        """Take single CPUs: of cores that are in use already first, or one of each core."""
        if not self.needed:
            return
        cores = [sorted(core & self.free) for core in self._scarcest_first(Level.CORE)]
        threads = _in_turns(cores) if across_cores else (cpu for core in cores for cpu in core)
        self._take([*threads][: self.needed])

    def _take(self, cpus: Iterable[int]) -> None:
        taken = set(cpus)
        self.taken |= taken
        self.free -= taken
        self.needed -= len(taken)

    def _scarcest_first(self, level: Level) -> list[CpuSet]:
        """The groups of a level in which CPUs are free: the fewest first, of large groups too."""
        outer, inner = self.topology.outer_levels
        outer_left, inner_left, left = map(self._left, (outer, inner, level))
        places = self.topology.places[level]

        def rank(number: int) -> tuple[int, ...]:
            outside, inside = places[number]
            return (
                *(outer_left[outside], outside),
                *(inner_left.get(inside, 0), inside),
                *(left[number], number),
            )

        groups = self.topology.groups[level]
        return [groups[number] for number in sorted(left, key=rank)]

    def _left(self, level: Level) -> Mapping[int, int]:
        """The number of free CPUs in each group that has some."""
        return Counter(map(self.topology.group_of[level].__getitem__, self.free))


def _in_turns(cores: list[list[int]]) -> Iterator[int]:
    """The first CPU of each core, then the second ones, and so on."""
    for thread in range(max(map(len, cores), default=0)):
        yield from (core[thread] for core in cores if thread < len(core))


def _parts(
    sizes: Mapping[int, int], chosen: tuple[int, ...], count: int, step: int
) -> Mapping[int, int] | None:
    """The part that each chosen node gives; None if they cannot give equal parts.

    What is over goes to those that have most left.
    """
    equal = count // (len(chosen) * step) * step
    if not equal or any(sizes[number] < equal for number in chosen):
        return None
    parts = dict.fromkeys(chosen, equal)
    over = (count - equal * len(chosen)) // step
    for number in sorted(chosen, key=lambda each: equal - sizes[each])[:over]:
        parts[number] += step
    return parts if all(sizes[number] >= part for number, part in parts.items()) else None


def _unevenness(sizes: Mapping[int, int], parts: Mapping[int, int]) -> int:
    """The spread of what is left on the nodes, as a sum of squares: all choices leave as much."""
    return sum((size - parts.get(number, 0)) ** 2 for number, size in sizes.items())
