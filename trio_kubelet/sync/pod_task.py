"""One incarnation of a pod, as a task.

The task owns all that lives and dies with the pod: its mailbox, its place in the pod machine
(`state_machines/pod.py`), the work in flight. It walks SyncPod → Terminating → Terminated →
Released → Finished; what is done in each state is in its `PodSteps`. Others put requests into the
mailbox, which holds at most one: a new one is folded into the one that waits. The task wakes, and a
request that ends the pod, or ends it sooner, cancels the work in flight. A bug in what is done for
one pod does not affect the others: it is logged with the pod's name and becomes a `FailedSync`
event, and the task tries again later.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import ParamSpec, Protocol, TypeVar

import structlog
import trio
from attrs import field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.pod import (
    POD,
    PodEvent,
    PodState,
    StopEvidence,
    may_have_running_containers,
)
from state_machines.pod_ending import (
    Ending,
    cuts_work_short,
    merge_endings,
    new_events,
    with_grace,
)
from trio_kubelet.k8s import Pod
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries, stretched
from trio_kubelet.telemetry import EventRecorder, EventType, Journal, Walk
from trio_kubelet.tracing import Tracer

log = structlog.get_logger("pod")

RETRY = BackoffPolicy(initial_seconds=1.0, cap_seconds=10.0, jitter=0.5)

P = ParamSpec("P")
T = TypeVar("T")


@frozen(kw_only=True)
class PodRequest:
    """Any of: here is a newer spec, look at the runtime again, end the pod.

    `why`: who asked, without repeats, for the journal.
    """

    pod: Pod | None = None
    ending: Ending | None = None
    waiters: tuple[trio.Event, ...] = ()
    why: tuple[str, ...] = ()


def merge_requests(pending: PodRequest | None, new: PodRequest) -> PodRequest:
    """One request that asks for all that `pending` and then `new` asked for.

    The newest spec wins, endings add up, everyone who waits for the end is remembered.
    """
    if pending is None:
        return new
    return PodRequest(
        pod=pending.pod if new.pod is None else new.pod,
        ending=merge_endings(pending.ending, new.ending),
        waiters=pending.waiters + new.waiters,
        why=pending.why + tuple(why for why in new.why if why not in pending.why),
    )


@frozen(kw_only=True)
class SyncResult:
    """The result of a sync.

    `ending`: by its own state or spec the pod is over (completed, deadline). `failed`:
    something could not be done; it is tried again with growing delays. `due_seconds`: look
    again after that time even if nothing happens (a back-off that expires); None: no such time.
    """

    ending: Ending | None = None
    failed: bool = False
    due_seconds: float | None = None


class UnfinishedError(Exception):
    """A syncer could not do something now, for a reason that is no bug; it is tried again."""


class PodSteps(Protocol):
    """The steps for one incarnation of a pod.

    Each method may be cancelled and called again, and may raise UnfinishedError.
    """

    def running(self) -> AbstractAsyncContextManager[None]:
        """Held while the task lives: it holds what lives and dies with the pod."""
        ...

    def notice(self, pod: Pod) -> None:
        """Something new may be known of the pod while work is in flight."""
        ...

    async def sync(self, pod: Pod) -> SyncResult:
        """Bring the pod closer to its spec and report its status."""
        ...

    async def terminate(self, pod: Pod, ending: Ending) -> StopEvidence:
        """Stop all containers, then look what still runs."""
        ...

    async def release(self, pod: Pod) -> None:
        """Give back what the pod held and others could want."""
        ...

    def report(self, pod: Pod) -> None:
        """Report the status by what is known, whatever is under way."""
        ...

    def let_go(self) -> None:
        """No source has the pod any more, and its status is nobody's."""
        ...

    async def leave_remains(self, pod: Pod) -> None:
        """Give back what the next incarnation must not find; the rest of what is left is its."""
        ...

    async def clean(self, pod: Pod) -> None:
        """Remove all that is left of the pod."""
        ...


_SPANS = {
    PodState.SYNC_POD: "syncPod",
    PodState.TERMINATING: "syncTerminatingPod",
    PodState.TERMINATED: "syncTerminatedPod",
    PodState.RELEASED: "cleanPod",
}


@frozen(kw_only=True)
class SharedByTasks:
    """The parts that all tasks are made with.

    A pod is looked at again after about `resync_seconds`. `cleaning` says when what is left of one
    is removed. `on_released(uid)` is called when a pod holds nothing any more that others could
    want, `on_work(pod, state, seconds)` when work for one has ended, however it did. `tracer` makes
    a span of it, if there are traces.
    """

    journal: Journal
    recorder: EventRecorder
    resync_seconds: float
    cleaning: CleaningTurns
    tracer: Tracer | None = None
    on_released: Callbacks[[str]] = field(init=False, factory=Callbacks)
    on_work: Callbacks[[Pod, PodState, float]] = field(init=False, factory=Callbacks)

    def span(self, pod: Pod, state: PodState) -> AbstractContextManager[object]:
        """The span of work for a pod, with the Go kubelet's names, if there are traces."""
        if self.tracer is None:
            return nullcontext()
        meta = pod.metadata
        attributes = {
            "k8s.pod.uid": meta.uid,
            "k8s.pod": meta.key,
            "k8s.pod.name": meta.name,
            "k8s.namespace.name": meta.namespace,
        }
        return self.tracer.span(_SPANS[state], attributes=attributes)


@frozen(kw_only=True)
class Beginning:
    """The beginning of an incarnation: in `state`, and with an `ending` if it only has to go.

    It waits until `predecessor`, who has its name, is released, and for `after`. What is left
    of it has waited since `released_at`, in trio's clock, if it had no task before.
    """

    incarnation: int
    predecessor: "PodTask | None" = None
    after: trio.Event | None = None
    state: PodState = PodState.SYNC_POD
    ending: Ending | None = None
    released_at: float | None = None


class PodTask:
    """Runs one incarnation of a pod. Made and owned by `PodTasks`.

    `stopped` is set when none of its containers runs any more, `released` when it holds nothing
    that others could want, `finished` when all is over.
    """

    def __init__(
        self,
        pod: Pod,
        syncer: PodSteps,
        shared: SharedByTasks,
        beginning: Beginning,
    ) -> None:
        state, ending = beginning.state, beginning.ending
        assert state in POD.initial, f"no pod begins in {state}"
        assert (ending is None) is (state is PodState.SYNC_POD), "what ends has an ending"
        self.pod = pod
        self.incarnation = beginning.incarnation
        self.began_in = state
        self.ending = ending
        self.started_at = trio.current_time()
        self._walk = Walk(
            POD,
            state,
            shared.journal,
            pod.metadata.key,
            entered_at=self.started_at,
            notes_all=True,
        )
        self.stopped = trio.Event()
        if not may_have_running_containers(state):
            self.stopped.set()
        self.released = trio.Event()
        self._released_at = beginning.released_at
        self.finished = trio.Event()
        self._syncer = syncer
        self._shared = shared
        self._hurry = trio.Event()
        self._leaves_remains = False
        self._predecessor = beginning.predecessor
        self._after = beginning.after
        self._pending: PodRequest | None = None
        self._waiters: tuple[trio.Event, ...] = ()
        self._wake = trio.Event()
        self._work = trio.CancelScope()
        self._retries = Retries(RETRY)

    @property
    def state(self) -> PodState:
        """The state of the incarnation."""
        return self._walk.state

    @property
    def known_ending(self) -> Ending | None:
        """The ending of the pod, as far as anybody has asked for one; None if it is to run."""
        return merge_endings(self.ending, self._pending.ending if self._pending else None)

    def put(self, request: PodRequest) -> None:
        """Ask for something. Returns at once; never fails, whatever state the pod is in."""
        if POD.is_terminal(self.state):
            _answer(request.waiters)
            return
        if cuts_work_short(self.state, self.known_ending, request.ending):
            self._work.cancel()
        self._pending = merge_requests(self._pending, request)
        self._wake.set()
        try:
            self._syncer.notice(self.pod)
        except Exception as error:
            self._failed(error)
        if self.stopped.is_set():
            self._answer_waiters()

    def report(self) -> None:
        """Report the pod's status at once: something other than the runtime has changed it.

        Never fails.
        """
        if not may_have_running_containers(self.state):
            return
        try:
            self._syncer.report(self.pod)
        except Exception as error:
            self._failed(error)

    def hurry(self, *, leaves_remains: bool) -> None:
        """The next incarnation waits for the end of the task: postpone nothing.

        With `leaves_remains` it goes on from the dead containers of this one, and their logs.
        """
        self._leaves_remains = leaves_remains
        self._hurry.set()

    async def run(self) -> None:
        """Walk the machine to its end. When cancelled, containers stay as they are."""
        work = {
            PodState.SYNC_POD: self._keep_synced,
            PodState.TERMINATING: self._stop_containers,
            PodState.TERMINATED: self._release,
            PodState.RELEASED: self._clean,
        }
        meta = self.pod.metadata
        with structlog.contextvars.bound_contextvars(pod=meta.key, uid=meta.uid):
            self._walk.begin("Added", uid=meta.uid)
            await self._wait_for_others()
            async with self._syncer.running():
                while not POD.is_terminal(self.state):
                    await work[self.state]()
            self._answer_waiters()
            self.finished.set()

    async def _keep_synced(self) -> None:
        """SyncPod: sync when something changed or falls due, until an ending comes."""
        delay = 0.0
        while True:
            await self._wait_for_request(delay)
            if self.ending is not None:
                self.ending = with_grace(
                    self.ending,
                    deletion_grace_seconds=self.pod.metadata.deletion_grace_period_seconds,
                    own_grace_seconds=self.pod.spec.termination_grace_period_seconds,
                )
                self._step(self.ending.cause)
                return
            result = await self._attempt(self._syncer.sync, self.pod)
            if result is not None and result.ending is not None:
                self.put(PodRequest(ending=result.ending))
            delay = self._next_delay(result)

    async def _stop_containers(self) -> None:
        """Terminating: stop containers until a fresh listing shows that none runs."""
        while True:
            ending = self._current_ending()
            evidence = await self._attempt(self._syncer.terminate, self.pod, ending)
            if evidence is not None and POD.allows(
                self.state, PodEvent.CONTAINERS_STOPPED, evidence
            ):
                self._step(PodEvent.CONTAINERS_STOPPED, evidence)
                self.stopped.set()
                self._answer_waiters()
                return
            await self._wait_for_request(self._next_delay(None))

    async def _release(self) -> None:
        """Terminated: give back what the pod held, until that has worked."""
        while not await self._attempt(self._done, self._syncer.release):
            await self._wait_for_request(self._next_delay(None))
        self._take()
        self._step(PodEvent.RELEASED)

    async def _clean(self) -> None:
        """Released: remove what is left of a pod that no source has, when there is time for it.

        What an evicted pod has left goes at once, its status stays.
        """
        ending = self._current_ending()
        is_kept = not (ending.delete_remains or ending.delete_content)
        if ending.delete_content:
            self._hurry.set()
        if not self.released.is_set():
            if ending.delete_remains:
                self._syncer.let_go()
            self.released.set()
            self._shared.on_released.call(self.pod.metadata.uid)
        if is_kept:
            self._step(PodEvent.KEPT)
            return
        if self._released_at is None:
            self._released_at = trio.current_time()
        namespace, cleaning = self.pod.metadata.namespace, self._shared.cleaning
        async with cleaning.turn(namespace, self._hurry, self._released_at):
            leaves_remains = self._leaves_remains
            work = self._syncer.leave_remains if leaves_remains else self._syncer.clean
            done = await self._attempt(self._done, work)
        if not done:
            await self._wait_for_request(self._next_delay(None))
            return
        self._take()
        self._step(PodEvent.KEPT if leaves_remains else PodEvent.CLEANED)

    async def _done(self, work: Callable[[Pod], Awaitable[None]]) -> bool:
        await work(self.pod)
        return True

    async def _attempt(
        self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Do the work of a state; None when it was cut short by a request, or failed."""
        state, began_at = self.state, trio.current_time()
        try:
            with trio.CancelScope() as self._work, self._shared.span(self.pod, state):
                return await work(*args, **kwargs)
        except UnfinishedError as error:
            words = "pod work unfinished, will retry"
            self._retries.warn(log, words, state=str(self.state), error=str(error))
        except Exception as error:
            self._failed(error)
        finally:
            self._shared.on_work.call(self.pod, state, trio.current_time() - began_at)
        return None

    def _failed(self, error: Exception) -> None:
        """Log a bug in what is done for this pod, and record it. Called while it is handled."""
        log.exception("pod sync failed", pod=self.pod.metadata.key, state=str(self.state))
        self._shared.recorder.pod(
            self.pod, EventType.WARNING, "FailedSync", f"Error syncing pod, skipping: {error}"
        )

    async def _wait_for_others(self) -> None:
        """Wait until the pod fits on the node, unless it ends first.

        A static pod starts when those that had its name hold nothing any more. One that ended
        while it waited still knows whom it waited for: its successor waits on.
        """
        if self._pending is not None and self._pending.ending is not None:
            return
        with trio.CancelScope() as self._work:
            while self._predecessor is not None:
                await self._predecessor.released.wait()
                self._predecessor = self._predecessor._predecessor
            if self._after is not None:
                await self._after.wait()

    async def _wait_for_request(self, timeout_seconds: float) -> None:
        """Wait for a request, or for the time; then take what the mailbox holds."""
        if timeout_seconds > 0 and self._pending is None:
            with trio.move_on_after(timeout_seconds):
                await self._wake.wait()
        else:
            await trio.lowlevel.checkpoint()
        self._take()

    def _take(self) -> None:
        """Make the request that waits, if any, part of what the task knows."""
        request, self._pending, self._wake = self._pending, None, trio.Event()
        if request is None:
            return
        self._waiters += request.waiters
        if request.ending is None:  # an ending is a step of the machine
            key, why = self.pod.metadata.key, ", ".join(request.why)
            self._shared.journal.note("sync", key, "SyncRequested", why)
        if request.pod is not None and request.pod != self.pod:
            self.pod = request.pod
            self._step(PodEvent.CHANGED)
        if request.ending is not None:
            self._take_note_of(request.ending)

    def _take_note_of(self, new: Ending) -> None:
        """Merge an ending; where the pod ends already, the machine takes note of it."""
        known, self.ending = self.ending, merge_endings(self.ending, new)
        if self.state is PodState.SYNC_POD or known is None or self.ending is None:
            return
        for event in new_events(known, self.ending):
            self._step(event)

    def _current_ending(self) -> Ending:
        """The ending as it stands, with what the mailbox holds."""
        self._take()
        assert self.ending is not None, "a pod leaves SyncPod only with an ending"
        return self.ending

    def _next_delay(self, result: SyncResult | None) -> float:
        """Seconds to wait for a request before looking again; 0 if one waits already."""
        if self._pending is not None:
            return 0.0
        if result is None or result.failed:
            delay = self._retries.next_seconds()
        else:
            self._retries.reset()
            delay = stretched(self._shared.resync_seconds, RETRY.jitter)
        if result is not None and result.due_seconds is not None:
            delay = min(delay, max(result.due_seconds, 0.0))
        return delay

    def _step(self, event: PodEvent, evidence: StopEvidence | None = None) -> None:
        """Move through the machine."""
        source, cause = self.state, self.ending.message if self.ending else ""
        if self._walk.step(event, evidence, cause=cause):
            log.info(
                "pod state changed", source=str(source), reason=str(event), target=str(self.state)
            )
            self._retries.reset()

    def _answer_waiters(self) -> None:
        """Tell everyone who waits that the containers have stopped."""
        self._take()
        waiters, self._waiters = self._waiters, ()
        _answer(waiters)


def _answer(waiters: Iterable[trio.Event]) -> None:
    for waiter in waiters:
        waiter.set()
