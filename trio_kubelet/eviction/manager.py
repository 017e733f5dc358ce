"""Takes the steps that `decision.py` decides on, one after each observation of the node.

The decision to evict a pod is on the disk before the pod is ended, so that an agent which is
killed in between finishes what it began. A pod counts as gone when its task has ended: nothing of
it runs, its volumes, layers and logs are removed. Then the node is observed at once, and only
that observation can lead to the next step. A pod that takes too long to go is not waited for
any longer: the node may need the next one. Pods that break their own limits go beside that, and
nobody waits for them.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from state_machines.pod_ending import Ending
from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.decision import (
    EvictionStep,
    GracePolicy,
    Progress,
    Reclaim,
    Victim,
    decide,
    is_short_of_memory,
    over_own_limits,
)
from trio_kubelet.eviction.limits import has_own_limits
from trio_kubelet.eviction.messages import EVICTED, THRESHOLD_MET, Starvation
from trio_kubelet.eviction.pressure import PressureHistory
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.records import EvictionRecord, EvictionRecords, record_of
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.k8s import TERMINAL_PHASES, Pod
from trio_kubelet.stats import StatsProvider
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("eviction")

PODS_DEADLINE_SECONDS = 20.0
"""The time that a round waits for the figures of pods, some of which the runtime has to tell."""

LATE_SECONDS = 30.0
"""The time beyond its grace after which a pod is not waited for any longer."""

LIMITS_SECONDS = 10.0
"""Between two looks at the limits that pods set themselves."""


@frozen(kw_only=True)
class NodePods:
    """The pods, for who evicts.

    `active()` gives those that hold resources, with what they were allocated; `source_version(uid)`
    a pod as its source has it, None if it has none. `all_known` is set when all sources
    have told. `end(uid, ending)` ends a pod, `is_gone(uid)` says whether its task has ended.
    """

    active: Callable[[], Iterable[Pod]]
    source_version: Callable[[str], Pod | None]
    all_known: trio.Event
    end: Callable[[str, Ending], None]
    is_gone: Callable[[str], bool]


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
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)
    on_evicted: Callbacks[[str]] = field(init=False, factory=Callbacks)
    on_decided: Callbacks[[Signal, float]] = field(init=False, factory=Callbacks)

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
        if unfinished:
            self._progress = self._progress.while_ending()
            self._tasks.start(partial(self._wait_for_ends, unfinished))

    async def _newest(self, *, after: float = float("-inf")) -> PressureHistory:
        """The newest observation, which began after a time; the next round waits for a newer."""
        history = await self._watch.newer_than(after)
        self._seen_at = history.observed.at
        return history

    async def _round(self, history: PressureHistory) -> None:
        if self._pods.all_known.is_set():
            await self._records.close(self._is_over)
        if not is_short_of_memory(history):
            if await self._hold_to_own_limits(history):
                return
            history = await self._newest()  # Files of pods may have taken long to measure.
        decision = decide(history, self._progress, self._grace)
        if decision.needs_pods and decision.starved is not None:
            candidates = await self._candidates(history, disks=_is_of_disk(decision.starved))
            if candidates is None:
                return
            history = await self._newest()
            decision = decide(history, self._progress, self._grace, candidates)
        await self._act(decision, history)

    async def _act(self, decision: EvictionStep, history: PressureHistory) -> None:
        starved = decision.starved
        if starved is None:
            return
        signal = starved.threshold.signal
        if self._progress.reclaimed is not signal:
            log.info("attempting to reclaim", resource=starved.resource, signal=str(signal))
            self._recorder.node(EventType.WARNING, THRESHOLD_MET, starved.event_message)
        if decision.reclaim:
            self._progress = self._progress.while_reclaiming()
            self._tasks.start(partial(self._reclaim, signal, decision.reclaim))
            return
        if decision.victim is None:
            log.warning("no pod can be evicted", signal=str(signal))
            self._progress = self._progress.without_victim()
            return
        age = (self._clock.now_ns() - history.observed.measured_ns) / 1e9
        for each in {threshold.signal for threshold in history.met}:
            self.on_decided.call(each, age)
        await self._evict([decision.victim])
        self._progress = self._progress.while_ending()
        victim = record_of(decision.victim, self._clock.now_ns())
        self._tasks.start(partial(self._wait_for_ends, [victim]))

    async def _reclaim(self, signal: Signal, reclaims: Sequence[Reclaim]) -> None:
        """Let node-level things go. What fails leaves the rest to be tried."""
        for each in reclaims:
            if each not in self._reclaims:
                continue
            try:
                await self._reclaims[each]()
            except Exception as error:
                log.warning("reclaim failed", what=str(each), error=str(error))
        self._progress = self._progress.after_reclaim(signal, trio.current_time())
        self._watch.look_now()

    async def _hold_to_own_limits(self, history: PressureHistory) -> bool:
        """Evict the pods that are over their own limits; True if there were any."""
        now = trio.current_time()
        if not self._own_limits or now < self._limits_due_at:
            return False
        self._limits_due_at = now + LIMITS_SECONDS
        if not any(has_own_limits(pod) for pod in self._pods.active()):
            return False
        candidates = await self._candidates(history, disks=True) or ()
        over = over_own_limits(candidates, history.observed.layout)
        if over:
            await self._evict(over)
        return bool(over)

    async def _candidates(
        self, history: PressureHistory, *, disks: bool
    ) -> tuple[Candidate, ...] | None:
        """The pods that may be evicted, measured now; None if that took too long.

        Disks take long where the runtime is busy: nobody looks at them while memory runs out.
        """
        with trio.move_on_after(PODS_DEADLINE_SECONDS) as scope:
            async with trio.open_nursery() as nursery:
                if disks:
                    nursery.start_soon(self._cancel_when_short_of_memory, history, scope)
                stats = await self._stats.usage_since(trio.current_time(), disks=disks)
                nursery.cancel_scope.cancel()
            by_uid = {each.uid: each for each in stats.pods}
            leaving = self._records.open_uids()
            return tuple(
                Candidate(pod=pod, stats=by_uid.get(pod.metadata.uid))
                for pod in self._pods.active()
                if pod.metadata.uid not in leaving
            )
        log.warning("measurement of pods given up")
        return None

    async def _cancel_when_short_of_memory(
        self, history: PressureHistory, scope: trio.CancelScope
    ) -> None:
        while not is_short_of_memory(history):
            history = await self._watch.newer_than(history.observed.at)
        scope.cancel()

    async def _evict(self, victims: Sequence[Victim]) -> None:
        """Record the decision, then end the pods."""
        now_ns = self._clock.now_ns()
        records = [record_of(victim, now_ns) for victim in victims]
        await self._records.add(records)
        for victim, record in zip(victims, records, strict=True):
            log.warning("evicting pod", pod=victim.pod.metadata.key, cause=victim.cause)
            self._recorder.pod(
                victim.pod,
                EventType.WARNING,
                EVICTED,
                victim.message,
                annotations=victim.annotations,
            )
            self._pods.end(record.uid, record.ending)
            self.on_evicted.call(victim.cause)

    async def _wait_for_ends(self, records: Sequence[EvictionRecord]) -> None:
        """Wait until the pods have gone; then the node is observed, and another may have to go."""
        with trio.move_on_after(LATE_SECONDS):
            await self._pods.all_known.wait()
        longest = max(each.grace_seconds for each in records) + LATE_SECONDS
        latest = trio.current_time() + longest
        for each in records:
            gone = self._gone[each.uid] = trio.Event()
            with trio.move_on_at(latest) as scope:
                if not self._pods.is_gone(each.uid):
                    await gone.wait()
            self._gone.pop(each.uid, None)
            if scope.cancelled_caught:
                log.warning("evicted pod is still there", pod=f"{each.namespace}/{each.name}")
        self._progress = self._progress.after_end(trio.current_time())
        self._watch.look_now()

    def _is_over(self, uid: str) -> bool:
        """True if nobody has to be told any more that the pod was evicted."""
        pod = self._pods.source_version(uid)
        return pod is None or pod.status.phase in TERMINAL_PHASES


def _is_of_disk(starved: Starvation) -> bool:
    return starved.resource in ("ephemeral-storage", "inodes")
