"""A machine with pods whose evictions a manager decides on, and whose figures a test sets."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import trio
from attrs import define, field

from state_machines.pod_ending import Ending
from tests.trio_clock import TrioClock
from tests.unit.eviction.candidates import disk, pod, stats
from tests.unit.eviction.readings import Machine
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.decision import GracePolicy, Reclaim
from trio_kubelet.eviction.manager import (
    EvictionManager,
    NodePods,
)
from trio_kubelet.eviction.records import EvictionRecords
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.k8s import Pod
from trio_kubelet.stats import StatsProvider
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent

HARD = tuple(
    Threshold(signal=signal, value=ThresholdValue.parse("100Mi"))
    for signal in (Signal.MEMORY, Signal.NODE_DISK)
)


@define
class Node:
    """A machine with pods. Pods that end take a second, and give back what they use."""

    root: Path
    machine: Machine = field(factory=Machine)
    memory: dict[str, int] = field(factory=dict)
    pods: dict[str, Pod] = field(factory=dict)
    ended: list[tuple[float, str, Ending]] = field(factory=list)
    reclaimed: list[str] = field(factory=list)
    events: list[RecordedEvent] = field(factory=list)
    reclaim_gives: int = 0
    reclaim_hangs: bool = False
    ends_after: float = 1.0
    takes_its_time: bool = False
    """Pods take all the grace that they are given."""
    removal_hangs: bool = False
    any_ended: trio.Event = field(factory=trio.Event)
    records: EvictionRecords = field(init=False)
    manager: EvictionManager = field(init=False)
    watch: PressureWatch = field(init=False)
    nursery: trio.Nursery = field(init=False)

    def add(self, name: str, memory: int, **spec: Any) -> None:
        """A pod that uses so many MiB."""
        self.pods[name], self.memory[name] = pod(name, **spec), memory
        self.measure()

    def measure(self) -> None:
        """What the pods use is the node's use."""
        self.machine.memory = sum(self.memory.values())
        self.machine.pods = tuple(
            stats(name, memory_mi=used, whole=disk(used)) for name, used in self.memory.items()
        )

    def end(self, uid: str, ending: Ending, stopped: trio.Event) -> None:
        """Begin to end a pod."""
        self.ended.append((trio.current_time(), uid, ending))
        self.any_ended.set()
        grace = ending.grace_seconds or 0
        self.nursery.start_soon(
            self._finish, uid, stopped, grace if self.takes_its_time else self.ends_after
        )

    async def _finish(self, uid: str, stopped: trio.Event, seconds: float) -> None:
        await trio.sleep(seconds)
        self.memory.pop(uid, None)
        self.measure()
        stopped.set()
        if self.removal_hangs:
            await trio.sleep_forever()
        self.pods.pop(uid, None)
        self.manager.pod_finished(uid, 1)

    async def reclaim(self, what: Reclaim) -> None:
        """Let node-level things go."""
        self.reclaimed.append(str(what))
        if self.reclaim_hangs:
            await trio.sleep_forever()
        self.machine.disk -= self.reclaim_gives

    @property
    def victims(self) -> Sequence[str]:
        return [uid for _, uid, _ in self.ended]

    def reasons(self) -> Sequence[str]:
        return [event.reason for event in self.events]


@asynccontextmanager
async def running(
    root: Path,
    *,
    thresholds: tuple[Threshold, ...] = HARD,
    own_limits: bool = False,
    pods: Mapping[str, int] | None = None,
    all_known: bool = True,
) -> AsyncIterator[Node]:
    """A node whose manager runs; `pods` are there from the start, and use so many MiB."""
    node, clock = Node(root), TrioClock()
    journal = Journal(clock)
    recorder = EventRecorder(journal, "node")
    recorder.on_event.add(node.events.append)
    known = trio.Event()
    if all_known:
        known.set()
    for name, memory in (pods or {}).items():
        node.add(name, memory)
    node.records = EvictionRecords(root)
    await node.records.load()
    node.watch = PressureWatch(
        thresholds=thresholds,
        transition_seconds=300,
        read=node.machine.read,
        journal=journal,
    )
    node.manager = EvictionManager(
        watch=node.watch,
        stats=cast("StatsProvider", node.machine),
        pods=NodePods(
            active=lambda: list(node.pods.values()),
            source_version=node.pods.get,
            all_known=known,
            end=node.end,
            is_gone=lambda uid: uid not in node.pods,
        ),
        reclaims={
            what: lambda what=what: node.reclaim(what)  # type: ignore[misc]
            for what in Reclaim
        },
        records=node.records,
        grace=GracePolicy(most_seconds=20),
        own_limits=own_limits,
        recorder=recorder,
        clock=clock,
    )
    async with trio.open_nursery() as node.nursery:
        await node.nursery.start(node.watch.run)
        node.nursery.start_soon(node.manager.run)
        yield node
        node.nursery.cancel_scope.cancel()


async def settled(seconds: float = 60) -> None:
    """Let time pass, in small steps: a thread takes none of it, but any number of them."""
    for _ in range(round(seconds * 10)):
        await trio.sleep(0.1)
