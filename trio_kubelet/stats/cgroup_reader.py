"""Reads what the cgroups of the node and of its pods use. Blocks: 10 microseconds a file.

How deep a reading goes is the reader's choice: a file that nobody asks for is not read, and of an
idle cgroup only a few are (`cgroup_files.py`). A cgroup that goes meanwhile is left out.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import chain, islice
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.k8s import PodQOSClass
from trio_kubelet.resources import CgroupDriver, CgroupTree
from trio_kubelet.resources.cgroup_names import kubepods_name, pod_uid_of, qos_cgroup_name
from trio_kubelet.stats.cgroup_files import CgroupFiles, read_file
from trio_kubelet.stats.cgroup_values import machine_usage
from trio_kubelet.stats.kernel_text import (
    all_tasks,
    boot_time_ns,
    cgroups_of_process,
    default_interface,
    disks,
    interfaces,
    meminfo,
)
from trio_kubelet.stats.values import (
    NetworkStats,
    NodeReading,
    NodeStats,
    SystemContainer,
    Usage,
)

Processes = Callable[[], Mapping[str, int]]
"""Returns a process of each system container, by name. Blocks."""

_CREDENTIALS = struct.Struct("3i")
ASK_AGAIN_SECONDS = 300.0
MAX_WITHIN_CONTAINERS = 256
"""Cgroups that the containers of one pod have made, and that are looked at."""


class Depth(IntEnum):
    """The depths to which a cgroup is read; each includes the ones before."""

    USAGE = 0
    NETWORK = 1
    DETAILS = 2


@frozen(kw_only=True)
class CgroupUsage:
    """A cgroup and what it uses."""

    path: str
    usage: Usage


@frozen(kw_only=True)
class PodCgroup:
    """The cgroup of a pod. `children` are those directly below it, by the ids in their names."""

    path: str
    usage: Usage
    children: Mapping[str, CgroupUsage]
    network: NetworkStats | None


@frozen(kw_only=True)
class CgroupReadings:
    """The readings of one walk. `between` are the cgroups above the pods, by their paths."""

    depth: Depth
    node: NodeStats
    pods: Mapping[str, PodCgroup] = field(factory=dict)
    between: Mapping[str, Usage] = field(factory=dict)
    system: tuple[SystemContainer, ...] = ()


class Stopwatch:
    """The time of day in a thread: what it was in the event loop, and what has passed since."""

    __slots__ = ("_began", "_then_ns")

    def __init__(self, now_ns: int) -> None:
        self._then_ns = now_ns
        self._began = time.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self._then_ns + time.monotonic_ns() - self._began


@frozen(kw_only=True)
class CgroupReader:
    """Reads cgroups; `tree` is None where pods have none.

    `host` is where the machine's root is mounted, `max_tasks` how many process ids it has.
    `system_cgroups` are those of system containers that settings name, by the containers' names.
    """

    tree: CgroupTree | None
    cgroup_root: str = "/"
    host: str = ""
    max_tasks: int | None = None
    system_cgroups: Mapping[str, str] = field(factory=dict)
    _files: dict[str, CgroupFiles] = field(factory=dict, init=False)

    def read(self, clock: Stopwatch, depth: Depth, processes: Processes) -> CgroupReadings:
        """Read everything. For one thread at a time."""
        readings = self._read(clock, depth, processes)
        for gone in self._files.keys() - set(_paths(readings)):
            del self._files[gone]
        return readings

    def _read(self, clock: Stopwatch, depth: Depth, processes: Processes) -> CgroupReadings:
        node = self._node(clock, depth)
        if self.tree is None:
            return CgroupReadings(depth=depth, node=node)
        pods: dict[str, PodCgroup] = {}
        between: dict[str, Usage] = {}
        for driver in CgroupDriver:
            for path in self._parents(driver):
                usage = self.usage(path, clock, depth)
                if usage is None:
                    continue
                between[path] = usage
                for child in self._children(path):
                    uid = pod_uid_of(child, driver)
                    pod = self._pod(f"{path}/{child}", clock, depth) if uid else None
                    if pod is not None:
                        pods[uid] = pod
        return CgroupReadings(
            depth=depth,
            node=node,
            pods=pods,
            between=between,
            system=tuple(self._system_containers(clock, depth, processes(), between)),
        )

    def read_node(self, clock: Stopwatch) -> NodeReading:
        """Read the machine, and the cgroup of all pods that limits them, if there is one."""
        node = self._node(clock, Depth.USAGE)
        name = kubepods_name(self.cgroup_root)
        paths = [name.path(driver) for driver in CgroupDriver]
        usages = [self._usage_and_limits(path, clock) for path in paths]
        limited = (each for each in usages if each and each.memory and each.memory.limit)
        return NodeReading(node=node, pods=next(limited, None))

    def _usage_and_limits(self, path: str, clock: Stopwatch) -> Usage | None:
        """The use of one cgroup with its limits as they are now: pods are evicted by them."""
        if self.tree is None:
            return None
        return CgroupFiles.of(self.tree, path).usage(clock.now_ns(), detailed=False)

    def usage(self, path: str, clock: Stopwatch, depth: Depth) -> Usage | None:
        """The use of one cgroup; None if it is not there."""
        if self.tree is None:
            return None
        files = self._files.get(path)
        if files is None:
            files = self._files[path] = CgroupFiles.of(self.tree, path)
        return files.usage(clock.now_ns(), detailed=depth >= Depth.DETAILS)

    def text(self, name: str) -> bytes | None:
        """A file of the machine, such as `proc/stat`; None if it cannot be read."""
        return read_file(f"{self.host}/{name}")

    def _parents(self, driver: CgroupDriver) -> Iterator[str]:
        """The cgroups that those of pods are in; that of all pods is the first."""
        yield kubepods_name(self.cgroup_root).path(driver)
        for qos in (PodQOSClass.BURSTABLE, PodQOSClass.BEST_EFFORT):
            yield qos_cgroup_name(qos, self.cgroup_root).path(driver)

    def _children(self, path: str) -> Iterator[str]:
        """The names of the cgroups in one, by the hierarchy with the fewest files beside them."""
        assert self.tree is not None
        hierarchies = self.tree.hierarchies
        root = hierarchies.get("pids", hierarchies["memory"])
        with suppress(OSError), os.scandir(f"{root}{path}") as entries:
            yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def _pod(self, path: str, clock: Stopwatch, depth: Depth) -> PodCgroup | None:
        usage = self.usage(path, clock, depth)
        if usage is None:
            return None
        children: dict[str, CgroupUsage] = {}
        for name in self._children(path):
            child = f"{path}/{name}"
            child_usage = None if is_monitor(name) else self.usage(child, clock, depth)
            if child_usage is not None:
                children[id_in(name)] = CgroupUsage(path=child, usage=child_usage)
        network = None
        if depth >= Depth.NETWORK:
            network = self._network_of([child.path for child in children.values()], clock)
        return PodCgroup(path=path, usage=usage, children=children, network=network)

    def _network_of(self, paths: Sequence[str], clock: Stopwatch) -> NetworkStats | None:
        """The network of the processes in some cgroups, which share it; None without one.

        crun, and containers with systemd, have all processes in cgroups within a container's. Of
        those a container can make any number, and so that is where not all are looked at.
        """
        assert self.tree is not None
        root = self.tree.hierarchies["memory"]
        within = (f"{path}/{name}" for path in paths for name in self._children(path))
        for folder in chain(paths, islice(within, MAX_WITHIN_CONTAINERS)):
            processes = (read_file(f"{root}{folder}/cgroup.procs") or b"").split(maxsplit=1)
            if processes and processes[0].isdigit() and processes[0] != b"0":
                return self._network(f"proc/{processes[0].decode()}", clock)
        return None

    def _network(self, process: str, clock: Stopwatch) -> NetworkStats | None:
        found = self.text(f"{process}/net/dev")
        if found is None:
            return None
        return NetworkStats(
            time_ns=clock.now_ns(),
            interfaces=interfaces(found),
            default=default_interface(self.text(f"{process}/net/route")),
        )

    def _node(self, clock: Stopwatch, depth: Depth) -> NodeStats:
        root = self.usage("", clock, depth)
        memory = meminfo(self.text("proc/meminfo"))
        return NodeStats(
            usage=machine_usage(root, clock.now_ns(), self.text),
            memory_bytes=memory.get("MemTotal", 0),
            available_memory_bytes=memory.get("MemAvailable"),
            swap_bytes=memory.get("SwapTotal", 0),
            booted_at_ns=boot_time_ns(self.text("proc/stat")),
            network=self._network("proc/self", clock) if depth >= Depth.NETWORK else None,
            tasks=all_tasks(self.text("proc/loadavg")),
            max_tasks=self.max_tasks,
            disks=disks(self.text("proc/diskstats")) if depth >= Depth.DETAILS else (),
        )

    def _system_containers(
        self,
        clock: Stopwatch,
        depth: Depth,
        processes: Mapping[str, int],
        between: Mapping[str, Usage],
    ) -> Iterator[SystemContainer]:
        """Cgroups that settings name or that such processes have for themselves, and all pods'."""
        found = {name: self._cgroup_of(pid) for name, pid in processes.items()}
        for name, path in {**found, **self.system_cgroups}.items():
            usage = self.usage(path, clock, depth) if path else None
            if usage is not None and usage.cpu is not None and usage.memory is not None:
                yield self._system_container(name, path, usage)
        pods = next(iter(between.items()), None)
        if pods is not None:
            yield self._system_container("pods", *pods)

    def _cgroup_of(self, pid: int) -> str:
        """The cgroup of a process, the same for CPU and memory; empty if that is the root's."""
        assert self.tree is not None
        paths = cgroups_of_process(self.text(f"proc/{pid}/cgroup"))
        wanted = ("cpuacct", "memory") if self.tree.version == 1 else ("",)
        found = {paths.get(controller, "/") for controller in wanted}
        return found.pop().rstrip("/") if len(found) == 1 else ""

    def _system_container(self, name: str, path: str, usage: Usage) -> SystemContainer:
        return SystemContainer(
            name=name, cgroup=path, started_at_ns=self.made_at_ns(path), usage=usage
        )

    def made_at_ns(self, path: str) -> int:
        """The time at which a cgroup was made, as its folder tells; 0 if it is gone."""
        assert self.tree is not None
        with suppress(OSError):
            return Path(f"{self.tree.hierarchies['memory']}{path}").stat().st_mtime_ns
        return 0


def _paths(readings: CgroupReadings) -> Iterator[str]:
    """The cgroups that were found; the root's path is empty."""
    yield ""
    yield from readings.between
    yield from (system.cgroup for system in readings.system)
    for pod in readings.pods.values():
        yield pod.path
        yield from (child.path for child in pod.children.values())


def id_in(folder: str) -> str:
    """The id in the name of a container's cgroup: `<id>`, `cri-containerd-<id>.scope`."""
    return folder.removesuffix(".scope").rpartition("-")[2]


def is_monitor(folder: str) -> bool:
    """True if a cgroup below a pod's is that of CRI-O's monitor of a container."""
    return folder.startswith("crio-conmon-")


class SystemProcesses:
    """Finds a process of each system container.

    `runtime_socket` is where the runtime listens, empty for one that has no process of its own.
    """

    __slots__ = ("_asked_at", "_runtime", "_socket")

    def __init__(self, runtime_socket: str) -> None:
        self._socket = runtime_socket
        self._runtime: int | None = None
        self._asked_at = float("-inf")

    def find(self) -> Mapping[str, int]:
        """Return process ids by the names that system containers have. Blocks."""
        found = {"kubelet": os.getpid()}
        now = time.monotonic()
        if self._socket and (self._runtime is None or now > self._asked_at + ASK_AGAIN_SECONDS):
            self._runtime, self._asked_at = listening_process(self._socket), now
        if self._runtime is not None:
            found["runtime"] = self._runtime
        return found


def listening_process(path: str) -> int | None:
    """The process that listens on a unix socket; None if nobody can be connected to at once."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        client.connect(path)
        told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(told)[0]
        return pid or None
    return None
