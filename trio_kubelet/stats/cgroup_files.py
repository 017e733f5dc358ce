"""The files of one cgroup: which are read each time, and which only when something has happened.

Reading files is most of what statistics cost, and most cgroups of a node are idle: each pod's
sandbox is. A cgroup whose CPU time, memory and pressures are to the byte what they were has not
run, so its other files say what they said (what it wrote and goes to the disk only now is dirty
memory that becomes clean). Limits are taken for what they were for a minute, but for those of all
pods together, by which pods are evicted: they are new when an agent reserves more than the last.
"""

import os
import time
from collections.abc import Mapping

from attrs import evolve, field, frozen

from trio_kubelet.resources import CgroupTree
from trio_kubelet.stats.cgroup_values import usage_v1, usage_v2
from trio_kubelet.stats.values import Usage

LIMIT_SECONDS = 60.0
"""The time that a limit is taken for what it was: nearly half of the files are limits."""

_LONGEST_FILE = 1 << 16
_LIMITS = frozenset(
    (
        *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"),
        *("cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max"),
        *("memory.max", "memory.swap.max", "memory.low", "cpu.weight", "cpu.max"),
    )
)
_SIGNS_OF_WORK = {
    1: (
        ("cpuacct", "cpuacct.usage"),
        ("memory", "memory.usage_in_bytes"),
        ("memory", "memory.stat"),
    ),
    2: (
        ("cpu", "cpu.stat"),
        ("memory", "memory.current"),
        ("memory", "memory.stat"),
        ("memory", "memory.swap.current"),
        ("cpu", "cpu.pressure"),
        ("memory", "memory.pressure"),
        ("io", "io.pressure"),
    ),
}
"""By the version of cgroups: what is read each time, that of the processor first, for who runs
between two of these reads is seen the next time."""

_USAGE = {1: usage_v1, 2: usage_v2}


@frozen
class _Reading:
    """The signs of work, and the cgroup's use then."""

    signs: Mapping[str, bytes | None]
    usage: Usage


@frozen
class CgroupFiles:
    """The files of one cgroup in the hierarchies of a machine; for one thread at a time."""

    _tree: CgroupTree
    _folders: Mapping[str, str]
    _limits: dict[str, tuple[float, bytes | None]] = field(factory=dict, init=False)
    _last: dict[bool, _Reading] = field(factory=dict, init=False)

    @classmethod
    def of(cls, tree: CgroupTree, path: str) -> "CgroupFiles":
        """The files of the cgroup at a path."""
        return cls(tree, {name: f"{root}{path}/" for name, root in tree.hierarchies.items()})

    def usage(self, now_ns: int, *, detailed: bool) -> Usage | None:
        """The use of the cgroup; None if it is not there. Blocks."""
        if self._forget_old_limits():
            self._last.clear()
        version = self._tree.version
        signs = {name: self._read(controller, name) for controller, name in _SIGNS_OF_WORK[version]}
        last = self._last.get(detailed)
        if last is not None and last.signs == signs:
            return evolve(last.usage, time_ns=now_ns)

        def files(controller: str, name: str) -> bytes | None:
            if name in signs:
                return signs[name]
            return (
                self._limit(controller, name) if name in _LIMITS else self._read(controller, name)
            )

        usage = _USAGE[version](files, now_ns, detailed=detailed)
        if usage is not None:
            self._last[detailed] = _Reading(signs, usage)
        return usage

    def _read(self, controller: str, name: str) -> bytes | None:
        folder = self._folders.get(controller)
        return read_file(folder + name) if folder is not None else None

    def _limit(self, controller: str, name: str) -> bytes | None:
        known = self._limits.get(name)
        if known is None:
            known = self._limits[name] = time.monotonic(), self._read(controller, name)
        return known[1]

    def _forget_old_limits(self) -> bool:
        """Forget all when the first of them is old; whether that is so."""
        first = next(iter(self._limits.values()), None)
        if first is None or time.monotonic() - first[0] < LIMIT_SECONDS:
            return False
        self._limits.clear()
        return True


def read_file(path: str) -> bytes | None:
    """The first 64 KiB of a file; None if it cannot be read."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.read(opened, _LONGEST_FILE)
    except OSError:
        return None
    finally:
        os.close(opened)
