"""The phase of a pod: a summary of its containers' statuses.

Init containers decide first: one that failed for good fails the pod, one that is not through
keeps it pending. Then the regular containers and the sidecars are counted. A terminal phase is
final: what was once told is never taken back, and it is only told once nothing of the pod runs,
because others act on it (a job starts a successor, a scheduler counts the resources as free).
"""

from collections import Counter
from enum import StrEnum

from state_machines.container import ContainerRole, restarts_after
from trio_kubelet.k8s import TERMINAL_PHASES, Container, ContainerStatus, Pod, PodPhase
from trio_kubelet.pod_source import is_static
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.runtime.restarts import (
    init_role,
    is_restarting_all,
    may_restart_all,
    restart_terms,
)
from trio_kubelet.status.container_statuses import ContainerStatuses, last_terminated, terminated
from trio_kubelet.status.context import PodStatusContext


class ContainerProgress(StrEnum):
    """The progress of a container, as the phase counts it."""

    WAITING = "waiting"
    STARTING = "starting"
    """It runs, and its startup probe has not succeeded yet."""
    RUNNING = "running"
    RESTARTING = "restarting"
    """It ended, and will be started again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def pod_phase(
    pod: Pod, statuses: ContainerStatuses, observed: ObservedPod, context: PodStatusContext
) -> PodPhase:
    """The phase that the statuses add up to; `context` as for the pod's status.

    One that failed for a reason that is not its containers' (`failure`) is Failed whatever they do,
    as soon as it was seen that it has stopped: until then one that nobody knows of may run.
    """
    previous, failed = context.previous.phase, context.failure is not None
    if previous in TERMINAL_PHASES:
        return PodPhase(previous)
    phase = PodPhase.FAILED if failed else _phase(pod, statuses, observed)
    if context.stopped and not failed and not is_static(pod):
        # The phase of a static pod stays open: it comes back as soon as its manifest does.
        phase = _final_phase(statuses)
    may_run = statuses.any_running or (failed and not context.stopped)
    if phase in TERMINAL_PHASES and may_run:
        return PodPhase(previous) if previous in list(PodPhase) else PodPhase.PENDING
    return phase


def phase_of_conditions(
    pod: Pod, statuses: ContainerStatuses, observed: ObservedPod, context: PodStatusContext
) -> PodPhase:
    """The phase in whose words conditions speak, which may be ahead of the one that is told.

    A pod that failed for a reason of its own serves nobody any more, whatever still runs of it. A
    pod that was stopped before all its containers had their turn has come to no end of its own:
    which of them are not ready stays what there is to say. `statuses` are as the runtime shows
    them.
    """
    if context.previous.phase in TERMINAL_PHASES:
        return PodPhase(context.previous.phase)
    if context.failure is not None:
        return PodPhase.FAILED
    phase = _phase(pod, statuses, observed)
    if context.stopped and phase is PodPhase.RUNNING and not is_static(pod):
        return _final_phase(statuses)
    return phase


def _final_phase(statuses: ContainerStatuses) -> PodPhase:
    """The phase of a pod that nothing of will run again."""
    succeeded = bool(statuses.regular) and all(map(_succeeded, statuses.regular))
    return PodPhase.SUCCEEDED if succeeded else PodPhase.FAILED


def _phase(pod: Pod, statuses: ContainerStatuses, observed: ObservedPod) -> PodPhase:
    has_started = _has_started_regular(pod, observed)
    if is_restarting_all(pod, observed):
        return PodPhase.RUNNING if has_started else PodPhase.PENDING
    regular = Counter(
        _standing(pod, container, ContainerRole.REGULAR, status, statuses.restarting)
        for container, status in zip(pod.spec.containers, statuses.regular, strict=True)
    )
    initial = Counter(
        (init_role(c), _standing(pod, c, init_role(c), status, statuses.restarting))
        for c, status in zip(pod.spec.init_containers, statuses.init, strict=True)
    )
    if initial[ContainerRole.INIT, ContainerProgress.FAILED]:
        return PodPhase.FAILED
    if _is_initializing(initial, has_started=has_started):
        return PodPhase.PENDING
    if (
        regular[ContainerProgress.WAITING]
        or initial[ContainerRole.SIDECAR, ContainerProgress.WAITING]
    ):
        return PodPhase.PENDING
    sidecars_run = any(
        initial[ContainerRole.SIDECAR, alive]
        for alive in (ContainerProgress.RUNNING, ContainerProgress.STARTING)
    )
    if sidecars_run or any(regular[s] for s in _ALIVE):
        return PodPhase.RUNNING
    if regular[ContainerProgress.FAILED]:
        return PodPhase.FAILED
    return PodPhase.SUCCEEDED if regular[ContainerProgress.SUCCEEDED] else PodPhase.PENDING


_ALIVE = (ContainerProgress.RUNNING, ContainerProgress.STARTING, ContainerProgress.RESTARTING)


def _is_initializing(
    initial: Counter[tuple[ContainerRole, ContainerProgress]], *, has_started: bool
) -> bool:
    """True if an init container has still to succeed, or a sidecar to be started.

    Sidecars that are restarted in a pod that was initialized do not make it pending again.
    """
    unfinished = (ContainerProgress.WAITING, ContainerProgress.STARTING, ContainerProgress.RUNNING)
    if any(initial[ContainerRole.INIT, standing] for standing in unfinished):
        return True
    starting = (ContainerProgress.WAITING, ContainerProgress.STARTING)
    return not has_started and any(initial[ContainerRole.SIDECAR, s] for s in starting)


def _standing(
    pod: Pod,
    container: Container,
    role: ContainerRole,
    status: ContainerStatus,
    restarting: frozenset[str],
) -> ContainerProgress:
    state = status.state
    if state is not None and state.running is not None:
        return ContainerProgress.RUNNING if status.started else ContainerProgress.STARTING
    end = terminated(status) or last_terminated(status)
    if end is None:
        return ContainerProgress.WAITING
    if role is ContainerRole.INIT and end.exit_code == 0:
        return ContainerProgress.SUCCEEDED
    restarts = restarts_after(restart_terms(pod, container, role), end.exit_code)
    if restarts or container.name in restarting:
        return ContainerProgress.RESTARTING
    if terminated(status) is None and may_restart_all(pod):
        return ContainerProgress.RESTARTING  # Why else should it wait after an end?
    return ContainerProgress.SUCCEEDED if _succeeded(status) else ContainerProgress.FAILED


def _succeeded(status: ContainerStatus) -> bool:
    """True if the newest incarnation itself ended well; not one before that it never replaced."""
    end = terminated(status)
    return end is not None and end.exit_code == 0


def _has_started_regular(pod: Pod, observed: ObservedPod) -> bool:
    """True if a regular container was made in the present sandbox: then the pod is initialized."""
    sandbox = observed.ready_sandbox
    regular = {container.name for container in pod.spec.containers}
    return sandbox is not None and any(
        container.name in regular and container.sandbox_id == sandbox.id
        for container in observed.containers
    )
