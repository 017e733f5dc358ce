"""A node whose figures a test sets."""

from collections.abc import Callable, Iterable

import trio
from attrs import define, evolve, field

from tests.trio_clock import TrioClock
from trio_kubelet.k8s import Pod
from trio_kubelet.stats.values import (
    Filesystem,
    MemoryUsage,
    NodeReading,
    NodeStats,
    PodStats,
    Stats,
    Usage,
)

MI = 1 << 20
CAPACITY = 1000


@define
class Machine:
    """Memory and disk of 1000 MiB and 1000 thousand process ids, of which so many are used."""

    memory: int = 0
    disk: int = 0
    tasks: int | None = 0
    pods: tuple[PodStats, ...] = ()
    read_at: list[float] = field(factory=list)
    hangs: bool = False
    seconds_of_disks: float = 0
    seconds_of_cgroups: float = 0
    when_measured: Callable[[], None] = lambda: None
    asked_for_layers: list[bool] = field(factory=list)
    asked_for_files: list[bool] = field(factory=list)
    problems: dict[str, str] = field(factory=dict)
    measures_pods: trio.Event = field(factory=trio.Event)
    measures_cgroups: trio.Event = field(factory=trio.Event)
    """Without disks, that is."""

    async def read(self, _time: float) -> NodeReading:
        """Read the node."""
        self.read_at.append(trio.current_time())
        if self.hangs:
            await trio.sleep_forever()
        return NodeReading(node=self._node())

    async def usage_since(
        self,
        _time: float,
        _pods: Iterable[Pod],
        *,
        disks: bool,
        fresh_files: bool = False,
        fresh_layers: bool = False,
    ) -> Stats:
        """Read node and pods."""
        self.measures_pods.set()
        if not disks:
            self.measures_cgroups.set()
        self.asked_for_files.append(disks and fresh_files)
        self.asked_for_layers.append(fresh_layers)
        pods = self.pods if disks else tuple(evolve(p, ephemeral_storage=None) for p in self.pods)
        await trio.sleep(self.seconds_of_disks if disks else self.seconds_of_cgroups)
        self.when_measured()
        return Stats(node=self._node(), pods=pods, problems=self.problems)

    def _node(self) -> NodeStats:
        now = TrioClock().now_ns()
        used = self.memory * MI
        return NodeStats(
            usage=Usage(time_ns=now, memory=MemoryUsage(usage=used, working_set=used)),
            memory_bytes=CAPACITY * MI,
            swap_bytes=0,
            booted_at_ns=1,
            tasks=None if self.tasks is None else self.tasks * 1000,
            max_tasks=CAPACITY * 1000,
            root=Filesystem(
                time_ns=now,
                device=1,
                available=(CAPACITY - self.disk) * MI,
                capacity=CAPACITY * MI,
                inodes=100,
                inodes_free=90,
            ),
        )
