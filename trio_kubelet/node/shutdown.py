"""Ends the pods in order when the machine goes down, and holds it up meanwhile.

`NodeShutdown` walks its table (`state_machines/shutdown.py`) by what logind announces. The groups
of pods end one after the other, from the lowest priority to the highest; each has its seconds, in
which its pods end as their own grace periods allow. Where logind grants less time than the groups
have together, each has less by the same share, so that none uses up that of others. Statuses go out
as pods end; logind is held up until the API shows the last ones, or all time is used up and a
little more: the pods that were killed last are to be told of, too. Meanwhile the node is not ready
and takes no pod.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import define, field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.pod_ending import Ending
from state_machines.shutdown import SHUTDOWN, ShutdownEvent, ShutdownState
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import Pod, Time
from trio_kubelet.kernel.logind import DelayLock, Logind
from trio_kubelet.kernel.system_bus import BusError
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.node.shutdown_record import ShutdownRecord, ended_pod
from trio_kubelet.pod_source import SYSTEM_CRITICAL_PRIORITY, is_static, priority_of
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.telemetry.journal import Journal, Walk

log = structlog.get_logger("shutdown")

WHO, WHY = "kubelet", "Kubelet needs time to handle node shutdown"
NOT_READY = "node is shutting down"
EVENT = "Shutdown"
DETECTED = "Shutdown manager detected shutdown event"
CALLED_OFF = "Shutdown manager detected shutdown cancellation"

FILE = "graceful_node_shutdown_state"
"""Below --root-dir, as the Go kubelet has it."""

LAST_STATUS_SECONDS = 2.0
"""The last pods are killed, and their statuses sent, though the pods have used up all time."""

SAVE_SECONDS = 1.0
RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=30.0, jitter=0.1)

S, E = ShutdownState, ShutdownEvent


@frozen
class GracePeriod:
    """The seconds that pods of this priority or more have to end."""

    priority: int
    seconds: float


@frozen
class PriorityGroup:
    """Pods that end together, and the seconds that all of them have."""

    seconds: float
    pods: tuple[Pod, ...]


def grace_periods(configuration: KubeletConfiguration) -> tuple[GracePeriod, ...]:
    """The periods in the order of priority; none where shutdowns are not held up."""
    by_priority = configuration.shutdown_grace_period_by_pod_priority
    if by_priority:
        periods = [GracePeriod(p.priority, p.shutdown_grace_period_seconds) for p in by_priority]
        return tuple(sorted(periods, key=lambda period: period.priority))
    total = configuration.shutdown_grace_period.total_seconds()
    critical = configuration.shutdown_grace_period_critical_pods.total_seconds()
    if not total:
        return ()
    return (
        GracePeriod(0, total - critical),
        GracePeriod(SYSTEM_CRITICAL_PRIORITY, critical),
    )


def periods_within(
    periods: Sequence[GracePeriod], granted_seconds: float
) -> tuple[GracePeriod, ...]:
    """The periods in a time in which they do not all fit: each is shorter by the same share.

    What the last statuses need is not the pods', but they have half of the time at least.
    """
    wanted = sum(period.seconds for period in periods)
    there = max(granted_seconds - LAST_STATUS_SECONDS, granted_seconds / 2)
    if wanted <= there:
        return tuple(periods)
    return tuple(GracePeriod(each.priority, each.seconds * there / wanted) for each in periods)


def priority_groups(
    periods: Sequence[GracePeriod], pods: Iterable[Pod]
) -> tuple[PriorityGroup, ...]:
    """The pods in the order in which they end. Those below all priorities go with the first."""
    groups: list[list[Pod]] = [[] for _ in periods]
    for pod in pods:
        reached = [i for i, period in enumerate(periods) if priority_of(pod) >= period.priority]
        groups[max(reached, default=0)].append(pod)
    return tuple(
        PriorityGroup(period.seconds, tuple(group))
        for period, group in zip(periods, groups, strict=True)
        if group
    )


@frozen(kw_only=True)
class ShutdownPods:
    """The pods, for who ends them all.

    `active()` gives those that hold resources, `end(uid, ending)` ends one, `is_gone(uid)` says
    whether its task has ended, `is_told(uid)` whether the API shows its newest status.
    """

    active: Callable[[], Iterable[Pod]]
    end: Callable[[str, Ending], None]
    is_gone: Callable[[str], bool]
    is_told: Callable[[str], bool]

    def is_over(self, uid: str) -> bool:
        """True if nobody has to wait for a pod any more."""
        return self.is_gone(uid) and self.is_told(uid)


@frozen
class ShutdownTimes:
    """When the last shutdown began and when its pods had ended, in nanoseconds; 0: never."""

    start_ns: int = 0
    end_ns: int = 0

    @property
    def seconds(self) -> tuple[float, float]:
        """Both in seconds since the epoch."""
        return self.start_ns / 1e9, self.end_ns / 1e9


@define(kw_only=True, eq=False)
class NodeShutdown:
    """Owner of the agent's part in shutdowns. `run` is its task.

    `open_logind` connects to logind, None on a host that has none. `record` is loaded before the
    first pod. `on_change` is called when a shutdown begins and when it is called off.
    """

    _periods: Sequence[GracePeriod]
    _open_logind: Callable[[], AbstractAsyncContextManager[Logind]] | None
    _file: Path
    _clock: Clock
    _journal: Journal
    _recorder: EventRecorder
    record: ShutdownRecord
    on_change: Callbacks[[]] = field(init=False, factory=Callbacks)
    times: ShutdownTimes = field(init=False, factory=ShutdownTimes)
    _walk: Walk[ShutdownState, ShutdownEvent, None] = field(init=False)
    _lock: DelayLock | None = field(init=False, default=None)
    _granted_seconds: float = field(init=False, default=math.inf)
    """The time that logind waits; infinite before it has told."""
    _ending: trio.CancelScope = field(init=False, factory=trio.CancelScope)
    _news: trio.Event = field(init=False, factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._walk = Walk(SHUTDOWN, S.UNGUARDED, self._journal, "node")

    @property
    def is_under_way(self) -> bool:
        """True if the machine goes down."""
        return self._walk.state in (S.ENDING, S.ENDED)

    def errors(self) -> tuple[str, ...]:
        """Why the node is not ready."""
        return (NOT_READY,) if self.is_under_way else ()

    def look_again(self, *_: object) -> None:
        """The task of a pod has ended, or the API shows a status."""
        self._news.set()
        self._news = trio.Event()

    async def run(self, pods: ShutdownPods) -> None:
        """Take part in shutdowns until cancelled; the lock is let go at the end."""
        if not self._periods:
            return
        await self._load()
        if self._open_logind is None:
            log.warning("shutdowns cannot be held up: this host has no logind")
            return
        retries = Retries(RETRY)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        async with self._open_logind() as logind:
                            await self._attend(logind, pods, nursery, retries)
                    except BusError as error:
                        self._walk.step(E.LOST)
                        retries.warn(log, "logind is away, will retry", error=str(error))
                    await retries.wait()
        finally:
            self._let_go()

    async def _attend(
        self, logind: Logind, pods: ShutdownPods, nursery: trio.Nursery, retries: Retries
    ) -> None:
        """Act on announcements until logind goes."""

        async def take(*, is_announced: bool) -> None:
            if is_announced and self._walk.step(E.ANNOUNCED):
                self._begin(pods, nursery)
            elif not is_announced and self.is_under_way:
                self._call_off()
            if not is_announced:
                await self._take_lock(logind)

        # What waits for nothing comes first: a reload of logind takes seconds.
        await take(is_announced=await logind.is_shutting_down())
        await self._ask_for_delay(logind)
        retries.reset()
        while True:
            await take(is_announced=await logind.announcement())

    async def _ask_for_delay(self, logind: Logind) -> None:
        wanted = sum(period.seconds for period in self._periods) + LAST_STATUS_SECONDS
        try:
            granted = await logind.ask_for_delay(wanted)
        except (OSError, BusError) as error:
            granted = await logind.delay_seconds()
            log.warning("logind cannot be told how long to wait", error=str(error))
        self._granted_seconds = granted
        if granted < wanted:
            log.warning(
                "a shutdown will not wait for as long as pods may need, each group has its share",
                wanted_seconds=wanted,
                granted_seconds=granted,
                hint="set InhibitDelayMaxSec in /etc/systemd/logind.conf",
            )

    async def _take_lock(self, logind: Logind) -> None:
        lock = await logind.lock(WHO, WHY)
        self._let_go()
        self._lock = lock
        self._walk.step(E.LOCKED)

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _begin(self, pods: ShutdownPods, nursery: trio.Nursery) -> None:
        log.warning("machine goes down, ending pods")
        self._recorder.node(EventType.NORMAL, EVENT, DETECTED)
        self._ending = trio.CancelScope()
        nursery.start_soon(self._end_pods, pods, self._ending)
        self.on_change.call()

    def _call_off(self) -> None:
        log.warning("shutdown was called off, remaining pods stay")
        self._recorder.node(EventType.NORMAL, EVENT, CALLED_OFF)
        self._walk.step(E.CALLED_OFF)
        self._ending.cancel()
        self.on_change.call()

    async def _end_pods(self, pods: ShutdownPods, scope: trio.CancelScope) -> None:
        with scope:
            periods = periods_within(self._periods, self._granted_seconds)
            latest = trio.current_time() + sum(period.seconds for period in periods)
            await self._save(ShutdownTimes(start_ns=self._clock.now_ns()))
            groups = priority_groups(periods, tuple(pods.active()))
            for group in groups:
                await self._end_group(group, pods)
            await self._wait_for_statuses(pods, groups, latest)
            await self._save(ShutdownTimes(self.times.start_ns, self._clock.now_ns()))
            # It may have been called off since this task was last made to go on.
            await trio.lowlevel.checkpoint_if_cancelled()
            log.warning("pods have ended, machine may go down")
            self._walk.step(E.PODS_ENDED)
            self._let_go()

    async def _wait_for_statuses(
        self, pods: ShutdownPods, groups: Sequence[PriorityGroup], latest: float
    ) -> None:
        """Wait until the API shows how pods ended; mirrors show nothing new, static pods run again.

        A static pod that has ended may have been the API server, or the way to it: then nobody
        answers, and what could be told has been.
        """
        ended = [pod for group in groups for pod in group.pods]
        to_tell = [pod.metadata.uid for pod in ended if not is_static(pod)]
        until = trio.current_time() + LAST_STATUS_SECONDS
        if len(to_tell) == len(ended):
            until = max(until, latest)
        with trio.move_on_at(until):
            await self._until(lambda: all(map(pods.is_over, to_tell)))

    async def _end_group(self, group: PriorityGroup, pods: ShutdownPods) -> None:
        """End the pods of a group, and wait until they are gone, or their time is over."""
        uids = [pod.metadata.uid for pod in group.pods]
        log.info("ending pods", pods=len(uids), seconds=group.seconds)
        ended = {pod.metadata.uid: ended_pod(pod, group.seconds) for pod in group.pods}
        for uid, each in ended.items():
            pods.end(uid, each.ending)
        with trio.move_on_after(group.seconds) as waiting:
            # Written while they end: a slow disk takes nothing of their time.
            await self.record.add(
                ended[pod.metadata.uid] for pod in group.pods if not is_static(pod)
            )
            await self._until(lambda: all(map(pods.is_gone, uids)))
        if waiting.cancelled_caught:
            left = [pod.metadata.key for pod in group.pods if not pods.is_gone(pod.metadata.uid)]
            log.warning("pods did not end in time", pods=left)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._news.wait()

    async def _save(self, times: ShutdownTimes) -> None:
        """Write the times down. A disk that hangs does not use up the time of pods."""
        self.times = times
        text = json.dumps({"startTime": _text(times.start_ns), "endTime": _text(times.end_ns)})
        try:
            with trio.move_on_after(SAVE_SECONDS):
                await run_in_thread(
                    partial(write_whole, self._file, text.encode(), folder_mode=0o750),
                    abandon_on_cancel=True,
                )
        except OSError as error:
            log.warning("shutdown time write failed", error=str(error))

    async def _load(self) -> None:
        try:
            kept = json.loads(await run_in_thread(self._file.read_bytes))
            self.times = ShutdownTimes(_ns(kept["startTime"]), _ns(kept["endTime"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("shutdown time read failed", file=str(self._file), error=str(error))


ZERO_TIME = "0001-01-01T00:00:00Z"
"""No time, as Go writes it."""


def _text(ns: int) -> str:
    return str(Time.from_ns(ns)) if ns else ZERO_TIME


def _ns(text: object) -> int:
    return 0 if text == ZERO_TIME else Time.parse(str(text)).ns
