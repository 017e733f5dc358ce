"""The sync loop: one nursery, one consumer for each channel, handlers that never wait.

    config         what the sources want            → store, admission, pod tasks
    pleg           what changed in the runtime      → the pod's task looks
    probes         what containers say of themselves → the pod's status, its task
    housekeeping   every two seconds                → what nobody wants any more goes

A handler runs from start to end without a checkpoint, so nothing interleaves inside it and no
lock is needed. All consumers wait while the runtime is down (`RuntimeHealth`), and what came in
meanwhile is still there when it is back. Consumers of channels tell the monitor when they begin
and end to deal with a message, so that one that is stuck is seen. Housekeeping does not: all that
it waits for is disks, and what it decides it decides without a checkpoint. A round that takes
long is told of in the log.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import structlog
import trio
from attrs import define, field

from state_machines.container import RestartPolicy
from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending, merge_endings
from trio_kubelet.eviction.records import EvictionRecord
from trio_kubelet.k8s import TERMINAL_PHASES, Pod
from trio_kubelet.node.shutdown_record import EndedPod
from trio_kubelet.pleg import PodChange
from trio_kubelet.pod_source import creation_order, priority_order
from trio_kubelet.probes import ProbeChange
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.sources import PodOperation, PodUpdate, Source
from trio_kubelet.status.merge import set_by_others
from trio_kubelet.sync.admission import (
    DISRUPTED,
    EXCEEDED_GRACE_PERIOD,
    NOT_KILLED_IN_TIME,
    PREEMPTING,
    PREEMPTION_MESSAGE,
    TOO_MANY_CONTAINERS,
    WAITING_FOR_ENDING_PODS,
    WAITING_FOR_PREEMPTED_PODS,
    AdmissionResult,
    Preemption,
    Rejection,
    was_admitted,
    with_ephemeral_containers_that_fit,
)
from trio_kubelet.sync.machine_parts import MachineParts, PartAwaited
from trio_kubelet.sync.monitor import LoopMonitor, logged_if_slow
from trio_kubelet.sync.pod_task import PodRequest, PodTask
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.preemptions import Fits, Preemptions, longest_wait_seconds
from trio_kubelet.sync.rejections import Rejections, rejection_of
from trio_kubelet.sync.resize_decisions import (
    PERIODIC,
    TERMINATED,
    TRIGGERS,
    ResizeDecisions,
)
from trio_kubelet.sync.store import PodStore, StoredPod
from trio_kubelet.sync.undecided import UndecidedPods
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("sync")

HOUSEKEEPING_SECONDS = 2.0
RESIZE_RETRY_SECONDS = 180.0
"""Pending resizes are decided again at the latest after so long, whatever happens."""
LOGGED_CHARACTERS = 200

T = TypeVar("T")


Admit = Callable[[Pod, Iterable[Pod]], AdmissionResult]
"""Decides whether a pod may run beside those that do; None admits it. Pure."""


@define(kw_only=True)
class SyncLoop:
    """Feeds the pod tasks. `run` returns only when cancelled.

    `undecided` keeps new pods for which the node is to be asked for anew. `fits` says whether a pod
    that was admitted fits beside others, `runs` whether something of a pod runs already,
    `unfinished_end` how an earlier agent has ended it. `clean_up` is awaited again and again as
    soon as all `sources` have said what they want, when `sources_known` is set.
    """

    _store: PodStore
    _tasks: PodTasks
    _admit: Admit
    _fits: Fits
    _undecided: UndecidedPods | None = None
    _allocations: Allocations
    _parts: MachineParts
    _resizing: ResizeDecisions
    _runtime_health: RuntimeHealth
    _monitor: LoopMonitor
    _config: trio.MemoryReceiveChannel[PodUpdate]
    _pleg: trio.MemoryReceiveChannel[PodChange]
    _probes: trio.MemoryReceiveChannel[ProbeChange]
    _sources: frozenset[Source]
    _clean_up: Callable[[], Awaitable[None]]
    _recorder: EventRecorder
    _runs: Callable[[str], bool] = lambda _uid: False
    _sources_known: trio.Event = field(factory=trio.Event)
    _unfinished_end: Callable[[str], EvictionRecord | EndedPod | None] = lambda _uid: None
    _silent_sources: set[Source] = field(init=False)
    _preemptions: Preemptions = field(init=False)
    _rejections: Rejections = field(init=False)
    _waits: BackgroundTasks = field(init=False, factory=BackgroundTasks)
    _resizes_decided_at: float = field(init=False, default=0.0)

    def __attrs_post_init__(self) -> None:
        self._silent_sources = set(self._sources)
        if not self._silent_sources:
            self._sources_known.set()
        self._preemptions = Preemptions(self._fits, self._may_start)
        self._rejections = Rejections(
            store=self._store,
            tasks=self._tasks,
            recorder=self._recorder,
            waits=self._waits,
            delete=self._delete,
        )
        self._runtime_health.on_change.add(self._tasks.on_runtime_state)
        self._tasks.on_finished.add(self.on_finished)
        self._parts.on_released.add(lambda _uid: self._waits.start(self._start_others))
        self._resizing.on_decided.add(self._on_resize_decided)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Consume all channels until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._consume, "config", self._config, self.on_config)
            nursery.start_soon(self._consume, "pleg", self._pleg, self.on_runtime_change)
            nursery.start_soon(self._consume, "probes", self._probes, self.on_verdict)
            nursery.start_soon(self._housekeeping)
            nursery.start_soon(self._waits.run)
            if self._undecided is not None:
                nursery.start_soon(self._undecided.run, self._decide)
            task_status.started()

    async def _consume(
        self,
        name: str,
        channel: trio.MemoryReceiveChannel[T],
        handle: Callable[[T], Awaitable[None] | None],
    ) -> None:
        async for item in channel:
            # The pods of one namespace may come by the hundred: whoever comes behind them waits as
            # many rounds of the event loop as each takes here, which is one.
            if not self._runtime_health.state.up:
                await self._runtime_health.wait_up()
            try:
                with self._monitor.busy(name):
                    if (handled := handle(item)) is not None:
                        await handled
            except Exception:
                log.exception("sync loop handler failed", message=repr(item)[:LOGGED_CHARACTERS])

    async def _housekeeping(self) -> None:
        await self._sources_known.wait()
        while True:
            await trio.sleep(HOUSEKEEPING_SECONDS)
            await self._runtime_health.wait_up()
            if trio.current_time() >= self._resizes_decided_at + RESIZE_RETRY_SECONDS:
                self._decide_resizes(PERIODIC)
            try:
                await logged_if_slow(self._clean_up)
            except Exception:
                log.exception("housekeeping failed")

    async def _wait_for_end(
        self, pod: Pod, stopped: trio.Event, ending: Ending, *, is_preempted: bool
    ) -> None:
        """Wait until a pod that leaves has stopped; record an event if a victim takes too long."""
        with trio.move_on_after(longest_wait_seconds(pod, ending)):
            await stopped.wait()
        if is_preempted and not stopped.is_set():
            self._recorder.pod(pod, EventType.WARNING, EXCEEDED_GRACE_PERIOD, NOT_KILLED_IN_TIME)
        self._preemptions.stopped(pod.metadata.uid)
        self._start_fitting()

    async def on_config(self, update: PodUpdate) -> None:
        """Take a source's update, one operation for some pods.

        Others have their turn between two of them: probes of pods that run are not late because
        many pods come at once, nor do all of these do the same at the same time.
        """
        handle = {
            PodOperation.ADD: self._add,
            PodOperation.UPDATE: self._update,
            PodOperation.DELETE: self._delete,
            PodOperation.REMOVE: self._remove,
            PodOperation.RECONCILE: self._reconcile,
        }[update.op]
        log.debug(
            "pods received from source",
            source=str(update.source),
            op=str(update.op),
            pods=len(update.pods),
        )
        for number, pod in enumerate(sorted(update.pods, key=self._admission_order)):
            if number:
                await trio.lowlevel.checkpoint()
            try:
                if not self._is_undecided(update.op, pod):
                    handle(self._bounded(pod, update.op))
            except Exception:
                log.exception("sync loop handler failed", pod=pod.metadata.key, op=str(update.op))
        self._silent_sources.discard(update.source)
        if not self._silent_sources and not self._sources_known.is_set():
            self._sources_known.set()
            self._start_fitting()
        if update.op in TRIGGERS:
            self._decide_resizes(TRIGGERS[update.op])

    def _is_undecided(self, op: PodOperation, pod: Pod) -> bool:
        """True if the pod waits until the node was asked for anew; what it is now is kept there."""
        if self._undecided is None or (op is PodOperation.ADD and self._was_admitted(pod)):
            return False
        return self._undecided.take(op, pod)

    async def _decide(self, pod: Pod) -> None:
        """Decide on a pod that waited for the node."""
        await self._runtime_health.wait_up()
        try:
            self._add(self._bounded(pod, PodOperation.ADD))
        except Exception:
            log.exception("sync loop handler failed", pod=pod.metadata.key, op="ADD")
        await trio.lowlevel.checkpoint()

    def on_runtime_change(self, change: PodChange) -> None:
        """A pod looks different in the runtime: its task is to look."""
        self._tasks.put(change.uid, PodRequest(why=(change.kind,)))

    def on_verdict(self, change: ProbeChange) -> None:
        """A probe's verdict has changed: report the status at once, and let the pod's task sync."""
        task = self._tasks.get(change.uid)
        if task is not None:
            task.report()
            task.put(PodRequest(why=(change.kind,)))

    def on_finished(self, uid: str, incarnation: int) -> None:
        """A task has ended. A pod that came back under its UID starts now."""
        self._store.close(uid, incarnation)
        self._preemptions.finished(uid)
        self._resizing.forget(uid)
        self._start_fitting()
        self._decide_resizes(TERMINATED)
        self._start_stored(uid)

    def _start_stored(self, uid: str) -> None:
        """Start the pod that a source has under a UID, if it has one, which has no task."""
        stored = self._store.get(uid)
        if stored is None or stored.over or uid in self._tasks:
            return
        try:
            self._start(stored)
        except Exception:
            log.exception("sync loop handler failed", pod=stored.pod.metadata.key, op="start")

    async def _start_when_sources_are_known(self, uid: str) -> None:
        await self._sources_known.wait()
        self._start_stored(uid)

    def end(self, uid: str, ending: Ending, waiter: trio.Event | None = None) -> None:
        """End a pod for a reason of the node's own, such as preemption."""
        waiters = (waiter,) if waiter is not None else ()
        self._tasks.put(uid, PodRequest(ending=ending, waiters=waiters, why=(ending.cause,)))

    def _admission_order(self, pod: Pod) -> tuple[object, ...]:
        """Pods that were admitted before come first: they keep what they hold.

        Then the more important ones, as they are to start first. The order of creation alone does
        not tell: static pods have no time of creation.
        """
        return (not self._was_admitted(pod), *priority_order(pod), *creation_order(pod))

    def _was_admitted(self, pod: Pod) -> bool:
        """True also if an earlier agent has ended it, though no status may have told of it yet."""
        uid = pod.metadata.uid
        return was_admitted(pod, runs=self._runs(uid)) or self._unfinished_end(uid) is not None

    def _bounded(self, pod: Pod, op: PodOperation) -> Pod:
        """The pod with no more ephemeral containers than the agent can serve."""
        bounded, problem = with_ephemeral_containers_that_fit(pod)
        if problem and op in (PodOperation.ADD, PodOperation.UPDATE):
            self._recorder.pod(pod, EventType.WARNING, TOO_MANY_CONTAINERS, problem)
        return bounded

    def _add(self, pod: Pod) -> None:
        replaced = self._store.get(pod.metadata.uid)
        if replaced is not None and self._is_current(replaced):
            # Another source had the same UID: one of them can run.
            ending = Ending(causes=(PodEvent.REMOVED,), delete_remains=True)
            self._tasks.put(pod.metadata.uid, PodRequest(ending=ending))
        self._rejections.drop(pod.metadata.uid)
        stored = self._store.add(pod, trio.current_time())
        if pod.metadata.uid in self._tasks:
            # A container that is not always restarted would be found to have ended for good.
            leaves_remains = pod.spec.restart_policy in ("", RestartPolicy.ALWAYS)
            self._tasks.hurry(pod.metadata.uid, leaves_remains=leaves_remains)
        else:
            self._start(stored)

    def _start(self, stored: StoredPod) -> None:
        pod = stored.pod
        if pod.metadata.deletion_timestamp is not None:
            self._tasks.start(pod, stored.incarnation)
            self._finish_end(pod)
            self._delete(pod)
            return
        if self._was_admitted(pod):
            self._allocations.allocate(pod, was_admitted=True)
            self._parts.recall(self._allocations.allocated(pod))
            self._resizing.ask(pod)
            self._tasks.start(pod, stored.incarnation)
            self._finish_end(pod)
            return
        others = [other for other in self._active() if other.metadata.uid != pod.metadata.uid]
        allocated = self._allocations.allocated(pod)
        result = self._admit(allocated, self._preemptions.staying(others))
        reason = WAITING_FOR_PREEMPTED_PODS
        if isinstance(result, Rejection) and self._fits_after_ends(allocated, others):
            result, reason = None, WAITING_FOR_ENDING_PODS
        if isinstance(result, Rejection):
            self._rejections.reject(stored, result)
            return
        if isinstance(result, Preemption):
            self._preempt(pod, result)
        fits = self._preemptions.wait(allocated, others)
        holders = self._preemptions.waited_for()
        refusal = self._parts.reserve(allocated) if fits is None else None
        if refusal is not None and not self._sources_known.is_set():
            # A pod may have it that is gone: no source may have told of that yet.
            self._waits.start(partial(self._start_when_sources_are_known, pod.metadata.uid))
            return
        if isinstance(refusal, PartAwaited):
            fits, reason = self._preemptions.hold(allocated), WAITING_FOR_ENDING_PODS
            holders = refusal.holders
        elif refusal is not None:
            self._rejections.reject(stored, rejection_of(refusal))
            return
        self._allocations.allocate(pod)
        self._resizing.ask(pod)
        if fits is not None:
            kind = "preempted" if reason == WAITING_FOR_PREEMPTED_PODS else "ending"
            message = f"Waiting for {kind} pods to stop: {holders}"
            self._recorder.pod(pod, EventType.WARNING, reason, message)
        self._tasks.start(pod, stored.incarnation, after=fits)

    def _finish_end(self, pod: Pod) -> None:
        """End a pod for the reason, and in the words, for which an earlier agent had, if it had."""
        unfinished = self._unfinished_end(pod.metadata.uid)
        if unfinished is None:
            return
        ending: Ending | None = unfinished.ending
        if pod.status.phase in TERMINAL_PHASES:
            # Its last status stands; what is left of it goes as it was decided.
            ending = merge_endings(Ending(causes=(PodEvent.COMPLETED,)), ending)
        else:  # The agent that decided may have been killed before its event was sent.
            unfinished.tell(self._recorder, pod)
        self._tasks.put(pod.metadata.uid, PodRequest(ending=ending, why=("unfinished end",)))

    def _fits_after_ends(self, pod: Pod, others: Iterable[Pod]) -> bool:
        """True if a pod may run once those that are ending have stopped; then these leave."""
        staying = self._preemptions.staying(others)
        ending = {
            task.pod.metadata.uid: (task, known)
            for task in map(self._current_task, staying)
            if task is not None and (known := task.known_ending) is not None
        }
        remaining = [each for each in staying if each.metadata.uid not in ending]
        if not ending or self._admit(pod, remaining) is not None:
            return False
        for each in staying:
            if each.metadata.uid in ending:
                task, known = ending[each.metadata.uid]
                wait = partial(self._wait_for_end, each, task.stopped, known, is_preempted=False)
                self._preemptions.leave(each)
                self._waits.start(wait)
        return True

    def _current_task(self, pod: Pod) -> PodTask | None:
        """The task of a pod; None while one of a former incarnation has its UID still."""
        stored, task = self._store.get(pod.metadata.uid), self._tasks.get(pod.metadata.uid)
        return task if stored is not None and self._is_current(stored) else None

    def _active(self) -> Iterator[Pod]:
        """The pods that hold resources, by what the sources say, with what they hold."""
        return (self._allocations.allocated(stored.pod) for stored in self._store.active())

    def _start_fitting(self) -> None:
        try:
            self._preemptions.start_fitting(self._active())
        except Exception:
            log.exception("start of waiting pods failed")

    async def _start_others(self) -> None:
        """In a task of the sync loop's: who gives back a part of the machine goes on first."""
        self._start_fitting()

    def _may_start(self, pod: Pod) -> bool | None:
        """True if a pod that waited is given its part of the machine; else it is rejected.

        None if it waits on: pods that leave have its part, or it leaves itself.
        """
        if self._parts.is_leaving(pod.metadata.uid):
            return None
        refusal = self._parts.reserve(pod)
        if isinstance(refusal, PartAwaited):
            return None
        if refusal is not None:
            self._rejections.reject_waiting(pod.metadata.uid, rejection_of(refusal))
        return refusal is None

    def _preempt(self, pod: Pod, preemption: Preemption) -> None:
        """End the victims. Pods that need their resources wait until they have stopped."""
        for victim in preemption.victims:
            log.info("preempting pod", pod=victim.metadata.key, critical=pod.metadata.key)
            self._recorder.pod(victim, EventType.WARNING, PREEMPTING, PREEMPTION_MESSAGE)
            ending = Ending(
                causes=(PodEvent.PREEMPTED,),
                reason=PREEMPTING,
                message=PREEMPTION_MESSAGE,
                disruption=DISRUPTED,
            )
            self._preemptions.leave(victim)
            stopped = trio.Event()
            self._waits.start(
                partial(self._wait_for_end, victim, stopped, ending, is_preempted=True)
            )
            self.end(victim.metadata.uid, ending, stopped)

    def _on_resize_decided(self, pod: Pod) -> None:
        self._tasks.put(pod.metadata.uid, PodRequest(why=("resize",)))

    def _decide_resizes(self, trigger: str) -> None:
        """Decide on pending resizes, if all pods that hold resources are known."""
        if not self._sources_known.is_set():
            return
        self._resizes_decided_at = trio.current_time()
        try:
            self._resizing.decide(trigger)
        except Exception:
            log.exception("resize decisions failed")

    def _update(self, pod: Pod) -> None:
        before = self._store.get(pod.metadata.uid)
        stored = self._store.update(pod)
        if stored is not None and self._is_current(stored):
            if stored.admitted and before is not None:
                self._resizing.ask(pod, before.pod)
            self._tasks.put(pod.metadata.uid, PodRequest(pod=pod, why=("spec",)))

    def _reconcile(self, pod: Pod) -> None:
        """Only the status differs. The pod syncs if somebody else wrote something new into it."""
        before = self._store.get(pod.metadata.uid)
        stored = self._store.update(pod)
        if before is None or stored is None or not self._is_current(stored):
            return
        if set_by_others(before.pod) != set_by_others(pod):
            self._tasks.put(pod.metadata.uid, PodRequest(pod=pod, why=("status",)))
        # Statuses come back all the time, and each decision sums up all pods.
        if before.pod.status.phase not in TERMINAL_PHASES and pod.status.phase in TERMINAL_PHASES:
            self._decide_resizes(TERMINATED)

    def _delete(self, pod: Pod) -> None:
        stored = self._store.update(pod)
        if stored is None or not self._is_current(stored):
            return
        ending = Ending(
            causes=(PodEvent.DELETED,), grace_seconds=pod.metadata.deletion_grace_period_seconds
        )
        self._tasks.put(pod.metadata.uid, PodRequest(pod=pod, ending=ending))

    def _remove(self, pod: Pod) -> None:
        stored = self._store.remove(pod)
        if stored is None:
            return
        ending = Ending(causes=(PodEvent.REMOVED,), delete_remains=True)
        if self._is_current(stored):
            self._tasks.put(pod.metadata.uid, PodRequest(ending=ending))
        elif self._rejections.drop(pod.metadata.uid):
            log.debug("rejected pod went before its end began", pod=pod.metadata.key)
        elif pod.metadata.uid not in self._tasks:
            self._tasks.clean(pod, stored.incarnation, ending)
        else:  # It waited for the end of a former incarnation, from which nobody goes on now.
            self._tasks.hurry(pod.metadata.uid, leaves_remains=False)

    def _is_current(self, stored: StoredPod) -> bool:
        """True if the task that lives under the UID is this incarnation's."""
        task = self._tasks.get(stored.pod.metadata.uid)
        return task is not None and task.incarnation == stored.incarnation
