"""The topology of a machine: which CPUs share a core, a cache, a NUMA node, a socket.

Read once, from sysfs, as one frozen value; a folder of a recorded machine does as well. Only CPUs
that are online count. A core is named by the lowest of its CPUs, as kernels number cores anew in
each socket. Where the kernel is silent there is one socket, one NUMA node, and a core for each CPU.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.resource_managers.cpu_sets import CpuSet, parsed_cpus

_MEMORY_TOTAL = re.compile(r"MemTotal:\s+(\d{1,15}) kB")
_HUGEPAGE_SIZE = re.compile(r"hugepages-(\d{1,12})kB")

LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20
"""The kernel's own values where the machine's tables have none."""

LOWEST_UNCORE_LEVEL = 3
"""Caches from this level on lie outside of the cores."""


class Level(Enum):
    """The kinds of groups that CPUs are in; the value is the attribute of `Cpu`."""

    CORE = "core"
    CACHE = "cache"
    NODE = "node"
    SOCKET = "socket"


@frozen(kw_only=True)
class Cpu:
    """One CPU (a hardware thread) and the numbers of the groups that it belongs to.

    `cache` is below zero where all CPUs of a socket count as sharing one.
    """

    id: int
    core: int
    cache: int
    node: int
    socket: int


@frozen(kw_only=True)
class NumaNode:
    """One NUMA node, which may have no CPUs, and its distance to each node, itself included.

    `hugepages` maps page size to the amount set aside, in bytes, as in `MachineSize`.
    """

    id: int
    distances: Mapping[int, int] = field(factory=dict)
    memory_bytes: int = 0
    hugepages: Mapping[int, int] = field(factory=dict)


@frozen
class MachineTopology:
    """The CPUs that are online, and all NUMA nodes."""

    cpus: tuple[Cpu, ...]
    numa_nodes: tuple[NumaNode, ...] = (NumaNode(id=0),)

    @cached_property
    def all(self) -> CpuSet:
        """The numbers of all CPUs."""
        return frozenset(cpu.id for cpu in self.cpus)

    @cached_property
    def groups(self) -> Mapping[Level, Mapping[int, CpuSet]]:
        """The CPUs of each core, cache, NUMA node and socket."""
        return {level: _grouped(self.cpus, level) for level in Level}

    @cached_property
    def group_of(self) -> Mapping[Level, Mapping[int, int]]:
        """The number of the core, cache, NUMA node and socket of each CPU."""
        return {level: {cpu.id: getattr(cpu, level.value) for cpu in self.cpus} for level in Level}

    @cached_property
    def smallest(self) -> Mapping[Level, int]:
        """The number of CPUs of the smallest group of each level."""
        return {
            level: min(map(len, groups.values()), default=0)
            for level, groups in self.groups.items()
        }

    @cached_property
    def distances(self) -> Mapping[int, Mapping[int, int]]:
        """The distance between any two NUMA nodes."""
        return {node.id: node.distances for node in self.numa_nodes}

    def sockets_of(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """The sockets that these NUMA nodes lie in."""
        return tuple(sorted({socket for node in nodes for socket in self._sockets.get(node, ())}))

    @cached_property
    def _sockets(self) -> Mapping[int, set[int]]:
        sockets: dict[int, set[int]] = {}
        for cpu in self.cpus:
            sockets.setdefault(cpu.node, set()).add(cpu.socket)
        return sockets

    @cached_property
    def outer_levels(self) -> tuple[Level, Level]:
        """NUMA nodes and sockets; first those of which there are fewer, which hold the others."""
        return (
            (Level.NODE, Level.SOCKET)
            if self.sockets >= self.nodes
            else (
                Level.SOCKET,
                Level.NODE,
            )
        )

    @cached_property
    def places(self) -> Mapping[Level, Mapping[int, tuple[int, int]]]:
        """The groups of the outer levels that each core, cache, node and socket lies in."""
        outer = [level.value for level in self.outer_levels]
        return {
            level: {
                getattr(cpu, level.value): (getattr(cpu, outer[0]), getattr(cpu, outer[1]))
                for cpu in reversed(self.cpus)
            }
            for level in Level
        }

    @property
    def cores(self) -> int:
        """The number of cores."""
        return len(self.groups[Level.CORE])

    @property
    def sockets(self) -> int:
        """The number of sockets."""
        return len(self.groups[Level.SOCKET])

    @property
    def nodes(self) -> int:
        """The number of NUMA nodes that have CPUs."""
        return len(self.groups[Level.NODE])

    @property
    def cpus_per_core(self) -> int:
        """The number of CPUs that a core has; the mean, rounded down, where cores differ."""
        return len(self.cpus) // max(1, self.cores)

    def of_whole_cores(self, free: CpuSet) -> CpuSet:
        """The CPUs of those cores that are free altogether."""
        cores = self.groups[Level.CORE].values()
        return frozenset(cpu for core in cores if core <= free for cpu in core)


def flat_topology(cpus: int) -> MachineTopology:
    """The topology of a machine of which only the number of CPUs is known."""
    return MachineTopology(
        tuple(Cpu(id=each, core=each, cache=-1, node=0, socket=0) for each in range(cpus))
    )


def read_topology(sysfs: Path, cpus: int) -> MachineTopology:
    """Read the topology from a folder such as `/sys/devices/system`. Blocks.

    It is a flat one of so many CPUs where the kernel tells of none. Raises ValueError for files
    that make no sense, OSError for those that cannot be read.
    """
    folder = sysfs / "cpu"
    online = online_cpus(sysfs)
    if not online:
        return flat_topology(cpus)
    nodes = {int(path.name.removeprefix("node")): path for path in _node_folders(sysfs / "node")}
    node_of = {cpu: node for node, path in nodes.items() for cpu in _cpus_of(path)}
    return MachineTopology(
        tuple(_cpu(folder / f"cpu{cpu}", online, node_of) for cpu in sorted(online)),
        tuple(_numa_node(node, nodes) for node in sorted(nodes)) or (NumaNode(id=0),),
    )


def _grouped(cpus: Iterable[Cpu], level: Level) -> Mapping[int, CpuSet]:
    found: dict[int, set[int]] = {}
    for cpu in cpus:
        found.setdefault(getattr(cpu, level.value), set()).add(cpu.id)
    return {number: frozenset(members) for number, members in sorted(found.items())}


def online_cpus(sysfs: Path) -> CpuSet:
    """Return the CPUs that are online; none where the kernel does not tell. Blocks.

    Raises OSError and ValueError.
    """
    folder = sysfs / "cpu"
    try:
        return parsed_cpus((folder / "online").read_text())
    except FileNotFoundError:
        names = (path.name.removeprefix("cpu") for path in folder.glob("cpu[0-9]*"))
        return frozenset(int(name) for name in names if name.isdigit())


def _node_folders(folder: Path) -> list[Path]:
    found = folder.glob("node[0-9]*")
    return [path for path in found if path.name.removeprefix("node").isdigit()]


def _cpus_of(node: Path) -> CpuSet:
    return parsed_cpus(_text(node / "cpulist") or "")


def _numa_node(number: int, folders: Mapping[int, Path]) -> NumaNode:
    """A node. The kernel tells distances in the order of the nodes, or not at all."""
    told = (_text(folders[number] / "distance") or "").split()
    distances = dict(zip(sorted(folders), map(int, told), strict=False))
    return NumaNode(
        id=number,
        distances={
            other: distances.get(other, LOCAL_DISTANCE if other == number else REMOTE_DISTANCE)
            for other in sorted(folders)
        },
        memory_bytes=_memory_bytes(folders[number] / "meminfo"),
        hugepages=_hugepages(folders[number] / "hugepages"),
    )


def _memory_bytes(meminfo: Path) -> int:
    total = _MEMORY_TOTAL.search(_text(meminfo) or "")
    return int(total[1]) << 10 if total is not None else 0


def _hugepages(folder: Path) -> Mapping[int, int]:
    sizes: dict[int, int] = {}
    for path in sorted(folder.glob("hugepages-*kB")):
        matched = _HUGEPAGE_SIZE.fullmatch(path.name)
        if matched is not None:
            size = int(matched[1]) << 10
            sizes[size] = size * int(_text(path / "nr_hugepages") or 0)
    return sizes


def _cpu(folder: Path, online: CpuSet, nodes: Mapping[int, int]) -> Cpu:
    number = int(folder.name.removeprefix("cpu"))
    topology = folder / "topology"
    siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
    threads = parsed_cpus(siblings or str(number)) & online or frozenset({number})
    socket = max(0, int(_text(topology / "physical_package_id") or 0))
    cache = _uncore_cache(folder / "cache")
    return Cpu(
        id=number,
        core=min(threads),
        cache=-1 - socket if cache is None else cache,
        node=nodes.get(number, 0),
        socket=socket,
    )


def _uncore_cache(folder: Path) -> int | None:
    """The lowest CPU that shares the first cache outside of the core; None if there is none.

    Caches have numbers of their own, but not on all machines.
    """
    for path in sorted(folder.glob("index[0-9]*")):
        level = _text(path / "level") or ""
        if level.isdigit() and int(level) >= LOWEST_UNCORE_LEVEL:
            sharers = parsed_cpus(_text(path / "shared_cpu_list") or "")
            return min(sharers, default=None)
    return None


def _text(path: Path) -> str | None:
    """The content of a file; None where there is none or it cannot be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
