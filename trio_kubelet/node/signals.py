"""Measures what a node has available: memory, disks, process ids. Everything here blocks.

Available is what the Go kubelet takes for it. Memory: all but the working set, which is what is
in use without the page cache that is not (inactive files). Disks: what the file system gives to
those who are not root. Process ids: the smaller of the kernel's limits less the tasks there are.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.config.eviction import Signal
from trio_kubelet.node.machine import max_pids
from trio_kubelet.node.pressure import Measured
from trio_kubelet.resources import CgroupTree

Signals = Mapping[Signal, Measured]

_KILOBYTES = r"^{}:\s+(\d+) kB$"
_NO_LIMIT_BYTES = 1 << 60
"""Memory limits from here on are cgroup v1's way to say that there is none."""


@frozen(kw_only=True)
class MeasurementSources:
    """Where to measure.

    `root_folder` is --root-dir. `tree` is None without cgroups; `pods_cgroups` are the names that
    the cgroup of all pods may have, `host` is where the machine's root is mounted.
    """

    root_folder: Path
    tree: CgroupTree | None = None
    pods_cgroups: tuple[str, ...] = ()
    host: Path = field(default=Path("/"))


@frozen(kw_only=True)
class Measurement:
    """The values that were measured, and the problems of the others by their names."""

    signals: Signals
    problems: Mapping[str, str]


def measure(sources: MeasurementSources, image_folder: Path | None) -> Measurement:
    """Measure all signals; `image_folder` is where the runtime keeps its images, if it told."""
    kinds: dict[str, Callable[[], Signals]] = {
        "memory": lambda: _memory(sources),
        "the memory of pods": lambda: _memory_of_pods(sources),
        "the disk of the node": lambda: _disk(
            sources.root_folder, Signal.NODE_DISK, Signal.NODE_INODES
        ),
        "process ids": lambda: _pids(sources.host),
    }
    if image_folder is not None:
        kinds["the disk of images"] = lambda: _disk(
            image_folder, Signal.IMAGE_DISK, Signal.IMAGE_INODES
        )
    signals: dict[Signal, Measured] = {}
    problems: dict[str, str] = {}
    for name, look in kinds.items():
        try:
            signals |= look()
        except (OSError, ValueError, IndexError) as error:
            problems[name] = str(error)
    return Measurement(signals=signals, problems=problems)


def _memory(sources: MeasurementSources) -> Signals:
    meminfo = (sources.host / "proc/meminfo").read_text()
    capacity = _kilobytes(meminfo, "MemTotal")
    working_set = _working_set(sources.tree, "/")
    if working_set is None:
        # The root cgroup of version 2 counts nothing itself.
        cache = _inactive_file(sources.tree, "/") or _kilobytes(meminfo, r"Inactive\(file\)")
        working_set = max(0, capacity - _kilobytes(meminfo, "MemFree") - cache)
    return {Signal.MEMORY: Measured(available=capacity - working_set, capacity=capacity)}


def _memory_of_pods(sources: MeasurementSources) -> Signals:
    """Nothing while pods have no cgroup of their own, or one without a limit."""
    tree = sources.tree
    if tree is None:
        return {}
    file = "memory.limit_in_bytes" if tree.version == 1 else "memory.max"
    for path in sources.pods_cgroups:
        try:
            text = (_folder(tree, path) / file).read_text().strip()
        except FileNotFoundError:
            continue
        limit = _NO_LIMIT_BYTES if text == "max" else int(text)
        working_set = _working_set(tree, path)
        if limit < _NO_LIMIT_BYTES and working_set is not None:
            measured = Measured(available=max(0, limit - working_set), capacity=limit)
            return {Signal.ALLOCATABLE_MEMORY: measured}
    return {}


def _working_set(tree: CgroupTree | None, path: str) -> int | None:
    """Bytes in use without the inactive page cache; None for a cgroup that counts nothing."""
    if tree is None:
        return None
    file = "memory.usage_in_bytes" if tree.version == 1 else "memory.current"
    try:
        used = int((_folder(tree, path) / file).read_text())
    except FileNotFoundError:
        return None
    return max(0, used - (_inactive_file(tree, path) or 0))


def _inactive_file(tree: CgroupTree | None, path: str) -> int | None:
    if tree is None:
        return None
    name = "total_inactive_file" if tree.version == 1 else "inactive_file"
    try:
        text = (_folder(tree, path) / "memory.stat").read_text()
    except FileNotFoundError:
        return None
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found is not None else None


def _folder(tree: CgroupTree, path: str) -> Path:
    return tree.hierarchies["memory"] / path.lstrip("/")


def _kilobytes(meminfo: str, name: str) -> int:
    found = re.search(_KILOBYTES.format(name), meminfo, re.MULTILINE)
    if found is None:
        raise ValueError(f"/proc/meminfo has no {name}")
    return int(found[1]) << 10


def _disk(folder: Path, space: Signal, inodes: Signal) -> Signals:
    """A file system without a fixed number of inodes (btrfs) runs out of none."""
    found = os.statvfs(folder)
    measured = {
        space: Measured(
            available=found.f_bavail * found.f_frsize, capacity=found.f_blocks * found.f_frsize
        )
    }
    if found.f_files:
        measured[inodes] = Measured(available=found.f_ffree, capacity=found.f_files)
    return measured


def _pids(host: Path) -> Signals:
    """The fourth word of /proc/loadavg is `running/all`, in tasks."""
    most = max_pids(host)
    if most is None:
        raise ValueError("the kernel tells no limit")
    tasks = int((host / "proc/loadavg").read_text().split()[3].partition("/")[2])
    return {Signal.PIDS: Measured(available=most - tasks, capacity=most)}
