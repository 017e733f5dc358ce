"""The load of the node's machine: what it has of memory, disk, inodes and process ids, who uses it.

The containers of the hollow runtime use some of each, and others on the machine the rest, which
somebody may change at any time. The agent reads of it what a kernel would tell: files of /proc,
and the size of file systems.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import trio
from attrs import define, frozen

from trio_kubelet.config.eviction import Resource
from trio_kubelet.hollow import HollowRuntime
from trio_kubelet.hollow.records import HollowContainer, HollowSandbox
from trio_kubelet.hollow.stats import memory_bytes
from trio_kubelet.k8s import NodeConditionType

MI, GI = 1 << 20, 1 << 30
_BLOCK_BYTES = 4096

CAPACITY: Mapping[Resource, int] = {
    Resource.MEMORY: 16 * GI,
    Resource.STORAGE: 100 * GI,
    Resource.INODES: 10_000_000,
    Resource.PIDS: 400_000,
}
USED_BY_OTHERS: Mapping[Resource, int] = {
    Resource.MEMORY: 4 * GI,
    Resource.STORAGE: 40 * GI,
    Resource.INODES: 1_000_000,
    Resource.PIDS: 1_000,
}
"""As long as nobody changes it: nothing is nearly short."""
SOFT_GRACE_SECONDS = 45


@frozen(kw_only=True)
class Limit:
    """An eviction threshold of the node: the amount that must be available."""

    resource: Resource
    least: int
    condition: NodeConditionType
    is_hard: bool = True


HARD_MEMORY = Limit(
    resource=Resource.MEMORY, least=100 * MI, condition=NodeConditionType.MEMORY_PRESSURE
)
SOFT_MEMORY = Limit(
    resource=Resource.MEMORY,
    least=500 * MI,
    condition=NodeConditionType.MEMORY_PRESSURE,
    is_hard=False,
)
LIMITS = (
    HARD_MEMORY,
    SOFT_MEMORY,
    Limit(
        resource=Resource.STORAGE,
        # 10% are 160 bytes more to a float32, as in the Go kubelet, and whole blocks are free.
        least=10 * GI + _BLOCK_BYTES,
        condition=NodeConditionType.DISK_PRESSURE,
    ),
    Limit(resource=Resource.INODES, least=500_000, condition=NodeConditionType.DISK_PRESSURE),
    Limit(resource=Resource.PIDS, least=40_000, condition=NodeConditionType.PID_PRESSURE),
)
EVICTION_SETTINGS: Mapping[str, object] = {
    "eviction_hard": {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "pid.available": "10%",
    },
    "eviction_soft": {"memory.available": "500Mi"},
    "eviction_soft_grace_period": {"memory.available": f"{SOFT_GRACE_SECONDS}s"},
    "eviction_max_pod_grace_period": 5,
}
"""The same thresholds, as a configuration has them."""


@define
class Level:
    """The state of a limit, and since when it is so (trio's clock)."""

    is_crossed: bool = False
    since: float = float("-inf")

    def was(self, *, crossed: bool, at: float) -> bool:
        """True if it was so all the time since then."""
        return self.is_crossed is crossed and self.since <= at


class Load:
    """Owner of the figures of a machine, whose root folder is `root`."""

    def __init__(self, root: Path, runtime: HollowRuntime) -> None:
        self._proc = root / "proc"
        self._proc.mkdir(parents=True)
        self._runtime = runtime
        self._others = dict(USED_BY_OTHERS)
        self._told: dict[str, str] = {}
        self.levels = {limit: Level() for limit in LIMITS}
        self._uses: dict[str, list[tuple[float, Mapping[Resource, int]]]] = {}
        """By the UID of a pod: what its containers use together, since when."""
        runtime.events.add_observer(lambda _kind, _id, sandbox: self.update(sandbox))
        self.update()

    def available(self, resource: Resource) -> int:
        """The amount that nobody uses."""
        by_pods = sum(map(USES[resource], self._runtime.containers))
        return CAPACITY[resource] - self._others[resource] - by_pods

    def leave(self, resource: Resource, amount: int) -> None:
        """Let others use so much that this amount is available, as long as pods use no more."""
        self._others[resource] += self.available(resource) - amount
        self.update()

    def relent(self, resource: Resource) -> None:
        """Let others use as much as at the beginning."""
        self._others[resource] = USED_BY_OTHERS[resource]
        self.update()

    def use_since(self, uid: str, resource: Resource, time: float) -> tuple[int, int]:
        """The least and the most that the containers of a pod have used since a time."""
        known = self._uses.get(uid, ())
        before = [uses for at, uses in known if at <= time][-1:]
        amounts = [uses[resource] for uses in (*before, *(u for at, u in known if at > time))]
        return (min(amounts), max(amounts)) if before else (0, max(amounts, default=0))

    def forget_uses(self) -> None:
        """Forget what pods have used, also those that run; `use_since` knows of none then."""
        self._uses.clear()

    def update(self, changed: HollowSandbox | None = None) -> None:
        """Write down the newest figures. Whoever changes what a container uses calls this.

        `changed` is the sandbox of a pod that uses more or less than before.
        """
        now = trio.current_time()
        if changed is not None:
            uid = str(changed.config.metadata.uid)
            own = [c for c in self._runtime.containers if c.sandbox.config.metadata.uid == uid]
            uses = {resource: sum(map(USES[resource], own)) for resource in Resource}
            self._uses.setdefault(uid, []).append((now, uses))
        for limit, level in self.levels.items():
            is_crossed = self.available(limit.resource) < limit.least
            if is_crossed is not level.is_crossed:
                level.is_crossed, level.since = is_crossed, now
        free_kib = max(0, self.available(Resource.MEMORY)) // 1024
        total_kib = CAPACITY[Resource.MEMORY] // 1024
        self._tell(
            "meminfo", f"MemTotal: {total_kib} kB\nMemFree: {free_kib} kB\nInactive(file): 0 kB\n"
        )
        tasks = CAPACITY[Resource.PIDS] - max(0, self.available(Resource.PIDS))
        self._tell("loadavg", f"0.10 0.10 0.10 1/{tasks} 4711\n")

    def _tell(self, name: str, text: str) -> None:
        if self._told.get(name) == text:
            return
        self._told[name] = text
        scratch = self._proc / f".{name}"
        scratch.write_text(text)
        scratch.rename(self._proc / name)

    def statvfs(self) -> os.statvfs_result:
        """The file system of the node, as the kernel tells of it."""
        blocks = CAPACITY[Resource.STORAGE] // _BLOCK_BYTES
        free = max(0, self.available(Resource.STORAGE)) // _BLOCK_BYTES
        files, files_free = CAPACITY[Resource.INODES], max(0, self.available(Resource.INODES))
        sizes = (_BLOCK_BYTES, _BLOCK_BYTES, blocks, free, free, files, files_free, files_free)
        return os.statvfs_result((*sizes, 0, 255))


def runs(container: HollowContainer) -> bool:
    """True if the container has a process."""
    return bool(container.started_at and not container.finished_at)


USES: Mapping[Resource, Callable[[HollowContainer], int]] = {
    Resource.MEMORY: lambda container: memory_bytes(container) if runs(container) else 0,
    Resource.STORAGE: lambda container: container.use.layer_bytes,
    Resource.INODES: lambda container: container.use.layer_inodes,
    Resource.PIDS: lambda container: container.use.tasks if runs(container) else 0,
}
"""The amount of each resource that a container uses."""
