"""Machines to assign CPUs of: written as sysfs shows them, and read back as the agent does."""

from collections.abc import Collection
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from attrs import frozen

from tests.turns import making_test_data
from tests.unit.devices.nodes import no_devices
from trio_kubelet.devices import DeviceManager
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import StaticCpuPolicy
from trio_kubelet.resource_managers.cpu_manager import CpuManager
from trio_kubelet.resource_managers.machine_topology import (
    MachineTopology,
    flat_topology,
    read_topology,
)
from trio_kubelet.resource_managers.memory_draft import StaticMemoryPolicy
from trio_kubelet.resource_managers.memory_manager import MemoryManager
from trio_kubelet.resource_managers.topology_manager import TopologyPolicy


@frozen(kw_only=True)
class Shape:
    """A machine of equal parts.

    CPUs are numbered as Linux does on x86: the first threads of all cores, then the second ones.
    With `interleaved` the threads of a core are neighbours, as in many virtual machines.
    `small_cores` are cores without a second thread, after the others; `offline` CPUs are not there.
    With `one_node` the sockets share one NUMA node; `far` nodes are twice as far from each other.
    Each node has so many `gib`, of which `pages` of `page_kib` are set aside as huge ones.
    """

    sockets: int = 1
    nodes_per_socket: int = 1
    cores_per_node: int = 4
    threads: int = 2
    cores_per_cache: int | None = None
    interleaved: bool = False
    small_cores: int = 0
    offline: Collection[int] = ()
    one_node: bool = False
    far: Collection[tuple[int, int]] = ()
    gib: int = 10
    pages: int = 0
    page_kib: int = 2048

    @property
    def large_cores(self) -> int:
        return self.sockets * self.nodes_per_socket * self.cores_per_node

    def threads_of(self, core: int) -> list[int]:
        if core >= self.large_cores:
            return [self.large_cores * self.threads + core - self.large_cores]
        if self.interleaved:
            return [core * self.threads + thread for thread in range(self.threads)]
        return [core + thread * self.large_cores for thread in range(self.threads)]


SMALL = Shape()
"""One socket, four cores of two threads: CPUs 0-3, and 4-7 their second threads."""

SINGLE_THREADED = Shape(threads=1, cores_per_node=8)
TWO_SOCKETS = Shape(sockets=2, cores_per_node=6)
"""CPUs 0-5 and 12-17 in the first socket, 6-11 and 18-23 in the second."""

FOUR_NODES = Shape(sockets=2, nodes_per_socket=2, cores_per_node=4)
"""NUMA nodes of four cores, two nodes in each socket: 0-3 and 16-19, 4-7 and 20-23, and so on."""

EIGHT_NODES = Shape(sockets=2, nodes_per_socket=4, cores_per_node=32)
"""512 CPUs."""

HYBRID = Shape(cores_per_node=4, small_cores=4)
"""Cores 0-3 of two threads (4-7 are the second ones), cores 8-11 of one."""

SPLIT_CACHES = Shape(cores_per_node=8, cores_per_cache=2)
"""Eight cores, two to a cache: CPUs 0, 1, 8 and 9 share the first one."""

NEIGHBOURS = Shape(interleaved=True)
"""Four cores of two threads, whose numbers are neighbours: 0-1, 2-3, 4-5, 6-7."""

PARTLY_OFFLINE = Shape(offline=(2, 7))
"""As the small one, but core 2 has only CPU 6 and core 3 only CPU 3."""


def write_machine(sysfs: Path, shape: Shape) -> None:
    """Write the files of a machine that topologies are read from."""
    cores = range(shape.large_cores + shape.small_cores)
    online = {cpu for core in cores for cpu in shape.threads_of(core)} - set(shape.offline)
    nodes: dict[int, list[int]] = {}
    for core in cores:
        node = min(core, shape.large_cores - 1) // shape.cores_per_node
        threads = [cpu for cpu in shape.threads_of(core) if cpu in online]
        nodes.setdefault(node, []).extend(threads)
        for cpu in threads:
            folder = sysfs / f"cpu/cpu{cpu}"
            _write(folder / "topology/core_cpus_list", ",".join(map(str, threads)))
            _write(folder / "topology/physical_package_id", str(node // shape.nodes_per_socket))
            if shape.cores_per_cache:
                first = core // shape.cores_per_cache * shape.cores_per_cache
                group = [
                    each
                    for other in range(first, first + shape.cores_per_cache)
                    for each in shape.threads_of(other)
                ]
                _write(folder / "cache/index3/level", "3")
                _write(folder / "cache/index3/shared_cpu_list", ",".join(map(str, group)))
    _write(sysfs / "cpu/online", ",".join(map(str, sorted(online))))
    if shape.one_node:
        nodes = {0: [cpu for cpus in nodes.values() for cpu in cpus]}
    for node, cpus in nodes.items():
        folder = sysfs / f"node/node{node}"
        _write(folder / "cpulist", ",".join(map(str, sorted(cpus))))
        _write(folder / "meminfo", f"Node {node} MemTotal: {shape.gib << 20} kB")
        _write(folder / f"hugepages/hugepages-{shape.page_kib}kB/nr_hugepages", str(shape.pages))
        _write(folder / "distance", " ".join(str(distance(shape, node, each)) for each in nodes))


def distance(shape: Shape, node: int, other: int) -> int:
    """As the kernel tells it: 10 for a node itself."""
    if node == other:
        return 10
    return 40 if {(node, other), (other, node)} & set(shape.far) else 20


@cache
def machine(shape: Shape = SMALL) -> MachineTopology:
    """The topology of a machine of that shape, read from its files."""
    with making_test_data(), TemporaryDirectory() as folder:
        write_machine(Path(folder), shape)
        return read_topology(Path(folder), 1)


def no_managers() -> ResourceManagers:
    """Managers that assign nothing and keep nothing."""
    return managers_of(None)


def managers_of(
    policy: StaticCpuPolicy | None,
    root: Path = Path("/nowhere"),
    *,
    memory: StaticMemoryPolicy | None = None,
    devices: DeviceManager | None = None,
    on: MachineTopology | None = None,
    **topology: Any,
) -> ResourceManagers:
    """Managers with policies, on one machine, and fields of a topology policy."""
    known = policy.topology if policy is not None else on or flat_topology(1)
    limiter = trio.CapacityLimiter(1)
    return ResourceManagers(
        CpuManager(policy, root, limiter),
        MemoryManager(memory, root, limiter),
        devices or no_devices(),
        TopologyPolicy(topology=known, **topology),
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
