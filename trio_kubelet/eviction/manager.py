"""Takes the steps that `decision.py` decides on, one after each observation of the node.

The decision to evict a pod is on the disk before the pod is ended, so that an agent which is
killed in between finishes what it began. A pod counts as gone when its task has ended: nothing of
it runs, its volumes, layers and logs are removed. Then the node is observed at once, and only
that observation can lead to the next step: for memory and process ids once the pod has stopped, for
disks once all of it is gone. A pod that takes too long is not waited for any longer: the node may
need the next one; and one that was given time has no more when a hard threshold is crossed. Pods
that break their own limits go beside that; while they end, no decision is made by the disks that
they give back.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from state_machines.pod_ending import Ending
from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.decision import (
    IMMEDIATE_GRACE_SECONDS,
    EvictionStep,
    GracePolicy,
    Progress,
    Reclaim,
    Victim,
    decide,
    is_urgent,
    over_own_limits,
)
from trio_kubelet.eviction.limits import has_own_limits
from trio_kubelet.eviction.messages import THRESHOLD_MET
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.eviction.ranking import Candidate, Figures
from trio_kubelet.eviction.records import EvictionRecord, EvictionRecords, record_of
from trio_kubelet.eviction.rhythm import PERIOD_SECONDS
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.k8s import TERMINAL_PHASES, Pod
from trio_kubelet.stats import StatsProvider
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("eviction")

PODS_DEADLINE_SECONDS = 30.0
"""The time that a round waits for the figures of pods: 12 s for layers, 15 s for files beside."""

LATE_SECONDS = 30.0
"""The time beyond its grace after which a pod is not waited for any longer by memory and pids."""

DISKS_LATE_SECONDS = 120.0
"""The same for disks: nothing is killed while they are full, and on a busy machine containers may
take a minute to stop, and as long again until their files are removed."""

LAYERS_SECONDS = 5.0
"""The time from the removal of a container until its layer is given back: containerd does that
later, in its own garbage collection."""

REMOVAL_SECONDS = 10.0
"""The time that is left for what a pod leaves, once its containers have stopped, while memory or
process ids run out: most of what it had was given back by then, and millions of files take long."""

RESUMED_LATE_SECONDS = 10.0
"""The same for what an earlier agent has begun, with the time until all pods are known."""

RECLAIM_SECONDS = 60.0
"""The time that node-level things of one kind have to go: a runtime that hangs holds up no pod."""

LIMITS_SECONDS = 10.0
"""Between two looks at the limits that pods set themselves, and from the end of pods that broke
theirs until the next look: a pod goes for a full disk meanwhile, however many break theirs."""


@frozen(kw_only=True)
class NodePods:
    """The pods, for who evicts."""

    active: Callable[[], Iterable[Pod]]
    """Returns those that hold resources, with what they were allocated."""
    source_version: Callable[[str], Pod | None]
    """Returns a pod by its UID as its source has it, None if it has none."""
    all_known: trio.Event
    """Set when all sources have told."""
    end: Callable[[str, Ending, trio.Event], None]
    """Ends a pod, and sets the event when nothing of it runs."""
    is_gone: Callable[[str], bool]
    """True if the task of a pod, by its UID, has ended."""


@define(kw_only=True, eq=False)
class EvictionManager:
    """Owner of the steps against pressure. `run` is its task.

    `own_limits`: pods are held to their own limits (localStorageCapacityIsolation). `on_evicted`
    is called with the label of each eviction, `on_decided` with each signal that was met when a
    pod was chosen and the age of its measurement in seconds.
    """

    _watch: PressureWatch
    _stats: StatsProvider
    _pods: NodePods
    _reclaims: Mapping[Reclaim, Callable[[], Awaitable[object]]]
    _records: EvictionRecords
    _grace: GracePolicy
    _own_limits: bool
    _recorder: EventRecorder
    _clock: Clock
    _progress: Progress = field(init=False, factory=Progress)
    _seen_at: float = field(init=False, default=float("-inf"))
    _limits_due_at: float = field(init=False, default=float("-inf"))
    _gone: dict[str, trio.Event] = field(init=False, factory=dict)
    _waits: dict[trio.CancelScope, float] = field(init=False, factory=dict)
    """The waits for pods that end, and the time that each goes on beyond their grace."""
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)
    on_evicted: Callbacks[[str]] = field(init=False, factory=Callbacks)
    on_decided: Callbacks[[Signal, float]] = field(init=False, factory=Callbacks)

    def use_grace(self, grace: GracePolicy) -> None:
        """Give the pods that are evicted from now on another grace."""
        self._grace = grace

    def pod_finished(self, uid: str, _incarnation: int) -> None:
        """A pod's task has ended."""
        gone = self._gone.pop(uid, None)
        if gone is not None:
            gone.set()

    async def run(self) -> None:
        """Take steps until cancelled; a pod that is being ended then is ended by the next agent."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tasks.run)
            self._resume()
            while True:
                try:
                    await self._round(await self._newest(after=self._seen_at))
                except Exception:
                    log.exception("eviction round failed")

    def _resume(self) -> None:
        """Wait for the pods that an earlier agent has begun to evict, before another one goes."""
        unfinished = [each for each in self._records if each.is_open]
        for_pressure = [each for each in unfinished if each.disruption]
        for_own_limits = [each for each in unfinished if not each.disruption]
        if for_pressure:
            self._await_victims(for_pressure, trio.Event(), is_resumed=True)
        if for_own_limits:
            self._await_ends_for_own_limits(for_own_limits, RESUMED_LATE_SECONDS)

    async def _newest(self, *, after: float = float("-inf")) -> Assessment:
        """The newest observation, which began after a time; the next round waits for a newer."""
        assessment = await self._watch.newer_than(after)
        self._seen_at = assessment.observed.at
        return assessment

    async def _round(self, assessment: Assessment) -> None:
        if self._pods.all_known.is_set():
            await self._records.close(self._is_over)
        if not is_urgent(assessment, self._progress):
            if await self._hold_to_own_limits(assessment):
                return
            assessment = await self._newest()  # Files of pods may have taken long to measure.
        decision = decide(assessment, self._progress, self._grace)
        while decision.needs is not None:
            figures = decision.needs
            candidates = await self._candidates(assessment, figures, fresh_files=True)
            if candidates is None:
                return
            assessment = await self._seen_since(figures)
            decision = decide(assessment, self._progress, self._grace)
            if decision.needs == figures:  # Nothing else has become short meanwhile.
                decision = decide(assessment, self._progress, self._grace, candidates)
        await self._act(decision, assessment)

    async def _seen_since(self, figures: Figures) -> Assessment:
        """The assessment that counts, now that the pods were measured."""
        if not figures.disks:
            return await self._newest()
        # Files and layers take long to measure. What went before is given back meanwhile.
        measured_at = trio.current_time()
        self._watch.look_now()
        return await self._newest(after=measured_at)

    async def _act(self, decision: EvictionStep, assessment: Assessment) -> None:
        if decision.hasten:
            await self._hasten()
        starved = decision.starved
        if starved is None:
            return
        signal = starved.threshold.signal
        if self._progress.reclaimed != signal:
            log.info("attempting to reclaim", resource=starved.resource, signal=str(signal))
            self._recorder.node(EventType.WARNING, THRESHOLD_MET, starved.event_message)
        if decision.reclaim:
            self._progress = self._progress.while_reclaiming()
            self._tasks.start(partial(self._reclaim, signal, decision.reclaim))
            return
        if decision.victim is None:
            log.warning("no pod can be evicted", signal=str(signal))
            until = trio.current_time()
            # While the pods of an agent that has just started are not known, others may come soon.
            if self._pods.all_known.is_set():
                until += PERIOD_SECONDS
                self._watch.look_now()  # Something else may be short, too.
            self._progress = self._progress.without_victim(signal, until)
            return
        age = (self._clock.now_ns() - assessment.observed.measured_ns) / 1e9
        for each in {threshold.signal for threshold in assessment.met}:
            self.on_decided.call(each, age)
        stopped = trio.Event()
        records = await self._evict([decision.victim], stopped)
        self._await_victims(records, stopped)

    async def _hasten(self) -> None:
        """Give pods that went for a soft threshold no more time than those of a hard one have."""
        records = await self._records.shorten(IMMEDIATE_GRACE_SECONDS)
        for each in records:
            log.warning("hard threshold crossed, evicted pod has no more time", pod=each.key)
            self._pods.end(each.uid, each.ending, trio.Event())
        now = trio.current_time()
        for scope, late_seconds in self._waits.items():
            scope.deadline = min(scope.deadline, now + IMMEDIATE_GRACE_SECONDS + late_seconds)
        self._progress = self._progress.hastened()

    async def _reclaim(self, signal: Signal, reclaims: Sequence[Reclaim]) -> None:
        """Let node-level things go. What fails leaves the rest to be tried."""
        for each in reclaims:
            if each not in self._reclaims:
                continue
            try:
                with trio.fail_after(RECLAIM_SECONDS):
                    await self._reclaims[each]()
            except Exception as error:
                log.warning("reclaim failed", what=str(each), error=str(error) or "timed out")
        self._progress = self._progress.after_reclaim(signal, trio.current_time())
        self._watch.look_now()

    async def _hold_to_own_limits(self, assessment: Assessment) -> bool:
        """Evict the pods that are over their own limits; True if there were any."""
        now = trio.current_time()
        if (
            not self._own_limits
            or now < self._limits_due_at
            or self._progress.is_ending_for_own_limits
        ):
            return False
        self._limits_due_at = now + LIMITS_SECONDS
        if not any(has_own_limits(pod) for pod in self._pods.active()):
            return False
        figures = Figures(disks=True, layers=False)
        candidates = await self._candidates(assessment, figures, fresh_files=False) or ()
        over = over_own_limits(candidates, assessment.observed.layout)
        if over:
            records = await self._evict(over, trio.Event())
            self._await_ends_for_own_limits(records, DISKS_LATE_SECONDS)
        return bool(over)

    async def _candidates(
        self, assessment: Assessment, figures: Figures, *, fresh_files: bool
    ) -> tuple[Candidate, ...] | None:
        """The pods that may be evicted, measured now; None if that took too long or has failed.

        A pod that goes because the figures of others lack could be one that keeps to its request.
        Disks take long where the runtime is busy: nobody looks at them while memory runs out.
        """
        with trio.move_on_after(PODS_DEADLINE_SECONDS) as scope:
            async with trio.open_nursery() as nursery:
                if figures.disks:
                    nursery.start_soon(self._cancel_when_urgent, assessment, scope)
                stats = await self._stats.usage_since(
                    trio.current_time(),
                    self._pods.active(),
                    disks=figures.disks,
                    fresh_files=fresh_files,
                    fresh_layers=figures.layers,
                )
                nursery.cancel_scope.cancel()
            has_figures = any(each.usage.memory is not None for each in stats.pods)
            if stats.problems and (figures.layers or not has_figures):
                log.warning("pod measurement incomplete", problems=dict(stats.problems))
                return None
            by_uid = {each.uid: each for each in stats.pods}
            leaving = self._records.open_uids()
            return tuple(
                Candidate(pod=pod, stats=by_uid.get(pod.metadata.uid))
                for pod in self._pods.active()
                if pod.metadata.uid not in leaving
            )
        log.warning("pod measurement abandoned")
        return None

    async def _cancel_when_urgent(self, assessment: Assessment, scope: trio.CancelScope) -> None:
        while not is_urgent(assessment, self._progress):
            assessment = await self._watch.newer_than(assessment.observed.at)
        scope.cancel()

    async def _evict(
        self, victims: Sequence[Victim], stopped: trio.Event
    ) -> Sequence[EvictionRecord]:
        """Record the decision, then end the pods; returns the records.

        `stopped` is set when nothing of one of them runs any more.
        """
        now_ns = self._clock.now_ns()
        records = [record_of(victim, now_ns) for victim in victims]
        await self._records.add(records)
        for victim, record in zip(victims, records, strict=True):
            log.warning("evicting pod", pod=victim.pod.metadata.key, cause=victim.cause)
            record.tell(self._recorder, victim.pod)
            self._pods.end(record.uid, record.ending, stopped)
            self.on_evicted.call(victim.cause)
        return records

    def _await_victims(
        self, records: Sequence[EvictionRecord], stopped: trio.Event, *, is_resumed: bool = False
    ) -> None:
        """Let the next pod go for memory once these have stopped, for a disk once they are gone.

        What they leave has REMOVAL_SECONDS: most of a pod's memory was given back by then.
        """
        gone = trio.Event()

        async def await_stop() -> None:
            late_seconds = RESUMED_LATE_SECONDS if is_resumed else LATE_SECONDS
            with self._within_grace(records, late_seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_after_removal, stopped, nursery.cancel_scope)
                    await gone.wait()
                    nursery.cancel_scope.cancel()
            self._progress = self._progress.after_stop(trio.current_time())
            self._watch.look_now()

        async def await_end() -> None:
            late_seconds = RESUMED_LATE_SECONDS if is_resumed else DISKS_LATE_SECONDS
            await self._wait_until_gone(records, late_seconds)
            gone.set()
            await trio.sleep(LAYERS_SECONDS)
            self._progress = self._progress.after_end(trio.current_time())
            self._watch.look_now()

        has_time = any(each.grace_seconds > IMMEDIATE_GRACE_SECONDS for each in records)
        self._progress = self._progress.while_ending(has_time=has_time)
        self._tasks.start(await_stop)
        self._tasks.start(await_end)

    def _await_ends_for_own_limits(
        self, records: Sequence[EvictionRecord], late_seconds: float
    ) -> None:
        """Until these have gone, no other pod goes for a disk."""

        async def wait() -> None:
            await self._wait_until_gone(records, late_seconds)
            now = trio.current_time()
            self._limits_due_at = now + LIMITS_SECONDS
            self._progress = self._progress.after_ends_for_own_limits(now)
            self._watch.look_now()

        self._progress = self._progress.while_ending_for_own_limits()
        self._tasks.start(wait)

    @contextmanager
    def _within_grace(
        self, records: Sequence[EvictionRecord], late_seconds: float
    ) -> Iterator[None]:
        """Leave the block so long after the grace of these pods, which may become shorter."""
        longest = max(each.grace_seconds for each in records)
        with trio.move_on_after(longest + late_seconds) as scope:
            self._waits[scope] = late_seconds
            try:
                yield
            finally:
                del self._waits[scope]

    async def _wait_until_gone(
        self, records: Sequence[EvictionRecord], late_seconds: float
    ) -> None:
        """Wait until the pods have gone, but not longer than their grace and `late_seconds`."""
        left = {each.uid: each for each in records}
        with self._within_grace(records, late_seconds):
            await self._pods.all_known.wait()
            for uid in tuple(left):
                gone = self._gone[uid] = trio.Event()
                try:
                    if not self._pods.is_gone(uid):
                        await gone.wait()
                finally:
                    self._gone.pop(uid, None)
                del left[uid]
        for uid, each in left.items():
            if not self._pods.is_gone(uid):
                log.warning("evicted pod is still there", pod=each.key)

    def _is_over(self, uid: str) -> bool:
        """True if nothing of a pod has to go any more, and nobody has to be told why it went."""
        if not self._pods.is_gone(uid):
            return False
        pod = self._pods.source_version(uid)
        return pod is None or pod.status.phase in TERMINAL_PHASES


async def _cancel_after_removal(stopped: trio.Event, scope: trio.CancelScope) -> None:
    await stopped.wait()
    await trio.sleep(REMOVAL_SECONDS)
    scope.cancel()
