"""The work of a pod's task in each state of its machine: the steps, in their order.

    sync       status → devices, claims → what admission gave, cgroup, volumes → containers → status
    terminate  stop containers → status
    release    volumes, beside them cgroup → devices → claims
    clean      containers, sandboxes → what admission gave → folders, logs

A syncer belongs to one incarnation of a pod, as do the containers that it acts on.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial

import structlog
import trio
from attrs import field, frozen

from state_machines.pod import (
    FAILING_ENDINGS,
    PodEvent,
    StopEvidence,
    effective_grace_seconds,
    is_deadline_exceeded,
    own_ending,
    seen_stopped,
)
from state_machines.pod_ending import Ending
from trio_kubelet.devices.manager import (
    WAITING,
    AllocationError,
    DeviceManager,
    DevicesAwaitedError,
)
from trio_kubelet.dra import ClaimManager, ClaimsAwaitedError
from trio_kubelet.dra.manager import FAILED_PREPARE, WAITING_FOR_CLAIMS
from trio_kubelet.errors import (
    UNEXPECTED_ADMISSION_ERROR,
    PodUnfitError,
    PreparationError,
    aggregated,
)
from trio_kubelet.k8s import TERMINAL_PHASES, Pod, PodStatus
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.resource_managers import Refusal, RefusedError, ResourceManagers
from trio_kubelet.resources.pod_cgroups import NoCgroups, PodCgroups
from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.health import RuntimeState
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.plan import RuntimeOutcome
from trio_kubelet.runtime.lifecycle.pod_runtime import PodContainers
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status import Failure, StatusReporter
from trio_kubelet.status.container_parts import resize_message
from trio_kubelet.status.context import POD_REJECTED
from trio_kubelet.sync.pod_task import SyncResult, UnfinishedError
from trio_kubelet.sync.rejection_pace import RejectionPace
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import both, run_and_call_if_slow, run_concurrently
from trio_kubelet.tasks.future import Future
from trio_kubelet.tasks.retries import LOGGED_EVERY_SECONDS
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes import PodStorage

log = structlog.get_logger("pod")

STOP_IS_LONG_SECONDS = 5.0
"""A stop that takes longer is reported while it goes on."""

DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


@frozen(kw_only=True)
class SyncDependencies:
    """All that pod syncers need, made once by the agent.

    `open_containers` makes the containers of a new incarnation of a pod, `runtime_state` returns
    what the runtime said last, `stopping` is held while a pod is being stopped.
    """

    open_containers: Callable[[Pod], PodContainers]
    cache: RuntimeCache
    statuses: StatusReporter
    storage: PodStorage
    cgroups: PodCgroups | NoCgroups
    allocations: Allocations
    managers: ResourceManagers
    devices: DeviceManager
    claims: ClaimManager
    resizes: ResizeProgress
    late_refusals: RejectionPace = field(factory=RejectionPace)
    runtime_state: Callable[[], RuntimeState]
    busy: Callable[[], AbstractContextManager[None]]
    recorder: EventRecorder
    clock: Clock

    def open_syncer(self, pod: Pod) -> "PodSyncer":
        """Make the syncer of a new incarnation."""
        return PodSyncer(self, pod)


class PodSyncer:
    """One incarnation of a pod. See `PodSteps` for what its methods promise."""

    def __init__(self, parts: SyncDependencies, pod: Pod) -> None:
        self._parts = parts
        self._containers = parts.open_containers(pod)
        self._failure: Failure | None = None
        self._awaited: Mapping[str, Reason] = {}
        self._late_refusal: tuple[Refusal, float] | None = None
        """Why the pod is rejected, and when."""
        self._uid = pod.metadata.uid
        self._end_problem = ""
        self._end_told_at = 0.0

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._containers.running()

    def notice(self, pod: Pod) -> None:
        """The runtime shows something new: tell of it, if the sync in flight waits for an image."""
        if self._containers.waits_for_image:
            self.report(pod)

    async def sync(self, pod: Pod) -> SyncResult:
        """Bring the pod closer to its spec and report its status.

        The pod gets what it was allocated, even if its spec has changed since.
        """
        parts = self._parts
        try:
            observed = await self._observed(pod)
        except RpcError as error:
            return self._runtime_failed(pod, error)
        status, over = self._report_status(pod, observed)
        if over is not None:
            return SyncResult(ending=over)
        network_error = parts.runtime_state().network_error
        if network_error and not pod.spec.host_network:
            self._warn(pod, "NetworkNotReady", f"network is not ready: {network_error}")
            return SyncResult(failed=True)
        try:
            await self._get_devices(pod, observed)
            await self._get_claims(pod, observed)
            outcome = await self._prepare_and_run(pod, observed)
        except RefusedError as error:
            return SyncResult(ending=self._rejection(pod, error.refusal))
        except PodUnfitError as error:
            if not observed.living:
                refusal = Refusal(reason=error.reason, message=error.message)
                return SyncResult(ending=self._rejection(pod, refusal))
            self._warn(pod, error.reason, error.message)
            return SyncResult(failed=True)
        except (DevicesAwaitedError, ClaimsAwaitedError) as error:
            self._report_status(pod, observed)
            return SyncResult(
                due_seconds=_earliest(error.seconds, self._deadline_seconds(pod, status))
            )
        except PreparationError as error:
            if not error.is_told:
                self._warn(pod, error.reason, error.message)
            return SyncResult(
                failed=error.retry_seconds is None,
                due_seconds=_earliest(error.retry_seconds, self._deadline_seconds(pod, status)),
            )
        except RpcError as error:
            return self._runtime_failed(pod, error)
        self._note_resize(pod, outcome)
        status, over = self._report_status(pod, outcome.observed)
        return SyncResult(
            ending=over,
            failed=outcome.failed,
            due_seconds=_earliest(
                self._seconds_until(outcome.due_ns), self._deadline_seconds(pod, status)
            ),
        )

    async def _get_devices(self, pod: Pod, observed: ObservedPod) -> None:
        """Have the pod's devices allocated.

        While containers of it run, one that has none yet waits alone, and nothing ends the pod.
        A pod of which nothing was made yet is placed near devices that were not known when it was
        admitted. Raises RefusedError and DevicesAwaitedError.
        """
        parts = self._parts
        if not observed.containers:
            self._place_anew(pod)
        running = {container.name for container in observed.living}
        if running & {container.name for container in pod.spec.containers}:
            running |= {each.name for each in pod.spec.init_containers if not is_sidecar(each)}
        try:
            await parts.devices.prepare(pod, running)
        except AllocationError as error:
            if not observed.living:
                refusal = Refusal(reason=UNEXPECTED_ADMISSION_ERROR, message=error.message)
                raise RefusedError(refusal) from error
        except DevicesAwaitedError as error:
            reason = Reason(reason=WAITING, message=str(error))
            self._awaited = dict.fromkeys(error.containers, reason)
            if parts.devices.is_new_wait(self._uid):
                self._warn(pod, WAITING, f"Waiting for devices: {error}")
            if not observed.living:
                raise
        else:
            self._awaited = {}

    def _place_anew(self, pod: Pod) -> None:
        """Place a pod near devices that were not known when it was admitted.

        Those of an owner that are refused end at the pace of rejections, and hold nothing
        meanwhile. Raises RefusedError, and DevicesAwaitedError until then.
        """
        parts, now = self._parts, trio.current_time()
        if self._late_refusal is None:
            refusal = parts.managers.place_anew(parts.allocations.allocated(pod))
            if refusal is None:
                return
            parts.managers.release(self._uid)
            self._late_refusal = refusal, now + parts.late_refusals.seconds(pod, now)
        refusal, at = self._late_refusal
        if at <= now:
            raise RefusedError(refusal)
        names = [each.name for each in pod.spec.admitted_containers]
        raise DevicesAwaitedError(refusal.message, names, at - now)

    async def _get_claims(self, pod: Pod, observed: ObservedPod) -> None:
        """Have the pod's resource claims prepared, as `_get_devices` has its devices allocated.

        Nothing of this ends a pod. Raises ClaimsAwaitedError.
        """
        claims = self._parts.claims
        try:
            await claims.prepare(pod, is_running=bool(observed.living))
        except ClaimsAwaitedError as error:
            reason = Reason(reason=WAITING_FOR_CLAIMS, message=str(error))
            self._awaited = {**self._awaited, **dict.fromkeys(error.containers, reason)}
            if claims.is_new_wait(self._uid):
                self._warn(pod, FAILED_PREPARE, f"Failed to prepare dynamic resources: {error}")
            if not observed.living:
                raise

    def _rejection(self, pod: Pod, refusal: Refusal) -> Ending:
        """Tell that the pod cannot have what it needs of the node; returns its end."""
        self._warn(pod, refusal.reason, refusal.message)
        return Ending(
            causes=(PodEvent.REJECTED,),
            reason=refusal.reason,
            message=f"{POD_REJECTED}{refusal.message}",
        )

    async def _prepare_and_run(self, pod: Pod, observed: ObservedPod) -> RuntimeOutcome:
        """Make the cgroup and the volumes, then what is to run; volumes beside a first sandbox.

        Only where what they are made of is there: a pod that waits for an object holds no address
        meanwhile. What the pod was allocated is on the disk before its sandbox is made,
        so that a restart finds it. Raises PreparationError and RpcError.
        """
        parts, inputs = self._parts, Future[PodInputs]()
        report = partial(self._report, pod)
        pod = parts.allocations.allocated(pod)
        outcomes: list[RuntimeOutcome] = []

        async def run() -> None:
            await run_concurrently(
                partial(parts.cgroups.ensure, pod), parts.allocations.keep, parts.managers.keep
            )
            if observed.sandboxes or not await parts.storage.volumes_are_certain(pod):
                await inputs.result()
            outcomes.append(await self._containers.sync(pod, observed, inputs, report))
            await inputs.result()

        await run_concurrently(run, partial(inputs.run, partial(parts.storage.prepare, pod)))
        return outcomes[0]

    async def _observed(self, pod: Pod) -> ObservedPod:
        """The pod as it was after the last call that may have changed it.

        After a call that failed nobody may have looked, and the next relist may be far away.
        """
        parts, acted_at = self._parts, self._containers.acted_at
        if parts.cache.is_newer_than(self._uid, acted_at):
            return await parts.cache.get_newer_than(self._uid, acted_at)
        return await self._containers.look(pod)

    def _runtime_failed(self, pod: Pod, error: RpcError) -> SyncResult:
        log.warning("runtime call failed", error=str(error))
        self._warn(pod, "FailedSync", f"Error syncing pod, skipping: {error.message}")
        return SyncResult(failed=True)

    async def terminate(self, pod: Pod, ending: Ending) -> StopEvidence:
        """Stop all containers, then look what still runs.

        A pod that stops quickly is reported once, at its end: until then only its observed
        generation would be new to the API.
        """
        if ending.cause in FAILING_ENDINGS:
            self._failure = Failure(
                reason=ending.reason,
                message=ending.message,
                rejected=ending.cause is PodEvent.REJECTED,
                disruption=ending.disruption,
            )
        grace = effective_grace_seconds(
            None, ending.grace_seconds, pod.metadata.deletion_grace_period_seconds
        )
        await self._parts.cache.get_newer_than(self._uid, 0.0)
        if self._failure is not None:
            self.report(pod)
        stop = partial(self._containers.stop, pod, grace)
        try:
            with self._parts.busy():
                evidence = await run_and_call_if_slow(
                    stop, STOP_IS_LONG_SECONDS, partial(self.report, pod)
                )
        except RpcError as error:
            self.report(pod)
            self._warn_of_end(pod, "FailedKillPod", error.message)
            raise UnfinishedError(error.message) from error
        has_stopped = seen_stopped(evidence)
        if has_stopped:
            self._parts.managers.release(self._uid)
            # The object may go with this report: the next agent is to find nothing of the pod.
            await self._parts.managers.keep()
        self.report(pod, stopped=has_stopped)
        return evidence

    async def release(self, pod: Pod) -> None:
        """See `PodSteps`. Volumes that hang keep nobody from the devices, nor the other way round.

        These are free only after the cgroup is gone, and with it all that could use them.
        """
        with self._parts.busy():
            problems = [
                problem
                for problem in await both(
                    partial(_problem_of, partial(self._parts.storage.unmount, pod)),
                    partial(_problem_of, self._release_devices),
                )
                if problem is not None
            ]
        if problems:
            message = aggregated(problem.message for problem in problems)
            self._warn_of_end(pod, problems[0].reason, message)
            raise UnfinishedError(message) from problems[0]

    async def _release_devices(self) -> None:
        await self._parts.cgroups.remove(self._uid)
        await self._parts.devices.release(self._uid)
        await self._parts.claims.release(self._uid)

    def report(self, pod: Pod, *, stopped: bool = False) -> None:
        """See `PodSteps`. `stopped`: none of its containers runs or will."""
        self._report(pod, self._parts.cache.get(self._uid), stopped=stopped)

    def let_go(self) -> None:
        """See `PodSteps`.

        A static pod that is put back under its UID has a new mirror before its task starts.
        """
        self._parts.statuses.forget(self._uid)

    async def leave_remains(self, _pod: Pod) -> None:
        """See `PodSteps`. The next incarnation is admitted anew."""
        await self._forget_allocation()

    async def clean(self, pod: Pod) -> None:
        parts = self._parts
        try:
            await self._containers.remove(pod)
            await self._forget_allocation()
            await parts.storage.remove(pod)
        except (RpcError, PreparationError) as error:
            raise UnfinishedError(error.message) from error

    async def _forget_allocation(self) -> None:
        self._parts.managers.release(self._uid)
        await self._parts.managers.keep()
        await self._parts.allocations.forget(self._uid)

    def _report(self, pod: Pod, observed: ObservedPod, *, stopped: bool = False) -> None:
        self._parts.statuses.put(pod, self._status(pod, observed, stopped=stopped))

    def _status(self, pod: Pod, observed: ObservedPod, *, stopped: bool = False) -> PodStatus:
        return self._parts.statuses.make(
            pod,
            observed,
            {**self._awaited, **self._containers.reasons},
            self._failure,
            restarting=self._containers.restarting,
            stopped=stopped,
        )

    def _report_status(self, pod: Pod, observed: ObservedPod) -> tuple[PodStatus, Ending | None]:
        """Report the status as of now; return it, and the ending that it implies.

        A pod over its deadline is first reported as failed, when it is terminated: until then it
        may be Ready, as after a restart of the agent, and no client is to send it requests.
        """
        status = self._status(pod, observed)
        over = self._own_ending(pod, status)
        if over is None or PodEvent.DEADLINE_EXCEEDED not in over.causes:
            self._parts.statuses.put(pod, status)
        return status, over

    def _note_resize(self, pod: Pod, outcome: RuntimeOutcome) -> None:
        """Take note of what has become of a resize, and record an event of it."""
        resizes, allocated = self._parts.resizes, self._parts.allocations.allocated(pod)
        if outcome.resize_error:
            failing = resizes.fail(self._uid, outcome.resize_error)
            if failing is not None:
                why, generation = failing.message, failing.generation
                message = resize_message(allocated, "error", why, generation)
                self._warn(pod, "ResizeError", message)
        elif (done := resizes.complete(self._uid)) is not None:
            message = resize_message(allocated, "completed", generation=done.generation)
            self._parts.recorder.pod(pod, EventType.NORMAL, "ResizeCompleted", message)

    def _own_ending(self, pod: Pod, status: PodStatus) -> Ending | None:
        """The ending that the pod's own state implies: completed, or over its deadline."""
        event = own_ending(
            phase_is_terminal=status.phase in TERMINAL_PHASES,
            deadline_exceeded=is_deadline_exceeded(
                active_deadline_seconds=pod.spec.active_deadline_seconds,
                started_at_ns=status.start_time.ns if status.start_time else None,
                now_ns=self._parts.clock.now_ns(),
            ),
        )
        if event is None:
            return None
        if event is not PodEvent.DEADLINE_EXCEEDED:
            return Ending(causes=(event,))
        self._parts.recorder.pod(pod, EventType.NORMAL, str(event), DEADLINE_MESSAGE)
        return Ending(causes=(event,), reason=str(event), message=DEADLINE_MESSAGE)

    def _deadline_seconds(self, pod: Pod, status: PodStatus) -> float | None:
        """Seconds until spec.activeDeadlineSeconds is over."""
        limit = pod.spec.active_deadline_seconds
        if limit is None or status.start_time is None:
            return None
        return self._seconds_until(status.start_time.ns + limit * 1_000_000_000)

    def _seconds_until(self, time_ns: int | None) -> float | None:
        if time_ns is None:
            return None
        return max(0.0, (time_ns - self._parts.clock.now_ns()) / 1e9)

    def _warn_of_end(self, pod: Pod, reason: str, why: str) -> None:
        """Record that the pod cannot be ended: at once if why is new, else once a minute."""
        now = trio.current_time()
        if why != self._end_problem or now - self._end_told_at >= LOGGED_EVERY_SECONDS:
            self._end_problem, self._end_told_at = why, now
            self._warn(pod, reason, f"error killing pod: {why}")

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        self._parts.recorder.pod(pod, EventType.WARNING, reason, message)


async def _problem_of(work: Callable[[], Awaitable[None]]) -> PreparationError | None:
    """Do a work; return why it cannot be done, None if it has been."""
    try:
        await work()
    except PreparationError as error:
        return error
    return None


def _earliest(*waits: float | None) -> float | None:
    return min((wait for wait in waits if wait is not None), default=None)
