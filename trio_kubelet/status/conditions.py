"""The conditions of a pod, with the times at which they last changed.

Five belong to the node and are made anew each time; DisruptionTarget is set once by whoever
disrupts the pod and kept; all others belong to somebody else and are passed on as the API has
them. Readiness gates are others' conditions that the pod's own readiness waits for.
"""

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve

from state_machines.container import ContainerRole
from trio_kubelet.k8s import (
    TERMINAL_PHASES,
    ConditionStatus,
    ContainerStatus,
    Pod,
    PodCondition,
    PodConditionType,
    PodPhase,
    PodStatus,
    Time,
)
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeStatus
from trio_kubelet.runtime.observed import ObservedPod, ObservedSandbox
from trio_kubelet.runtime.restarts import init_role, is_restarting_all, may_restart_all
from trio_kubelet.status.container_statuses import ContainerStatuses, terminated
from trio_kubelet.status.context import PodStatusContext

OWN_CONDITIONS = frozenset(
    {
        PodConditionType.READY_TO_START_CONTAINERS,
        PodConditionType.INITIALIZED,
        PodConditionType.READY,
        PodConditionType.CONTAINERS_READY,
        PodConditionType.POD_SCHEDULED,
        PodConditionType.RESIZE_PENDING,
        PodConditionType.RESIZE_IN_PROGRESS,
        PodConditionType.ALL_CONTAINERS_RESTARTING,
    }
)
"""Conditions that no one but the node sets. One that is not made anew is over."""

BY_KUBELET = "TerminationByKubelet"
"""The reason of a disruption by the node itself."""

RESTART_STARTED = "RestartAllContainersStarted"
RESTART_MESSAGE = "container exited with restart policy rule"

MOST_GATES_NAMED = 100
"""In the message of the condition Ready."""

ENDED_REASONS = {PodPhase.SUCCEEDED: "PodCompleted", PodPhase.FAILED: "PodFailed"}


def pod_conditions(
    pod: Pod,
    statuses: ContainerStatuses,
    observed: ObservedPod,
    *,
    phase: PodPhase,
    context: PodStatusContext,
) -> tuple[PodCondition, ...]:
    """All conditions of the pod: others' first, then the node's.

    A condition whose status is what it was before keeps its time. `phase` is the one in whose
    words they speak.
    """
    previous = context.previous
    disruption = context.failure.disruption if context.failure is not None else ""
    others = others_conditions(pod, previous)
    since = {condition.type: condition for condition in previous.conditions}
    containers_ready = _containers_ready(pod, statuses, phase)
    told = since.get(PodConditionType.CONTAINERS_READY)
    if previous.phase in TERMINAL_PHASES and told is not None and told.reason:
        # How a pod ended is said once, and not in other words later.
        containers_ready = evolve(containers_ready, reason=told.reason, message=told.message)
    own = (
        *_resizing(phase, context.resize),
        *_disrupted(others, disruption),
        _ready_to_start_containers(pod, observed),
        *_all_containers_restarting(pod, observed, phase),
        _initialized(pod, statuses, phase, since.get(PodConditionType.INITIALIZED)),
        _ready(pod, containers_ready, others),
        containers_ready,
        _condition(PodConditionType.POD_SCHEDULED, holds=True),
    )
    generation = pod.metadata.generation or None
    return (
        *others,
        *(
            evolve(
                condition,
                observed_generation=condition.observed_generation or generation,
                last_transition_time=_transition_time(
                    condition, since.get(condition.type), Time.from_ns(context.now_ns)
                ),
            )
            for condition in own
        ),
    )


def others_conditions(pod: Pod, previous: PodStatus) -> tuple[PodCondition, ...]:
    """Conditions of others: as the API has them now, but a disruption is not forgotten."""
    others = {c.type: c for c in pod.status.conditions if c.type not in OWN_CONDITIONS}
    for condition in previous.conditions:
        if condition.type == PodConditionType.DISRUPTION_TARGET:
            others[condition.type] = condition
    return tuple(others.values())


def _resizing(phase: PodPhase, resize: ResizeStatus) -> Iterator[PodCondition]:
    """The conditions of a pod that waits for other resources, or is being given them.

    None of a pod that is over (KEP-1287). Each tells of the version of the spec that it is about.
    """
    told = (
        (PodConditionType.RESIZE_PENDING, resize.pending),
        (PodConditionType.RESIZE_IN_PROGRESS, resize.in_progress),
    )
    for kind, state in told:
        if state is not None and phase not in ENDED_REASONS:
            condition = _condition(kind, holds=True, reason=state.reason, message=state.message)
            yield evolve(condition, observed_generation=state.generation)


def _disrupted(others: Iterable[PodCondition], message: str) -> Iterator[PodCondition]:
    """The condition of a pod that the node disrupts, unless the pod has it already."""
    target = PodConditionType.DISRUPTION_TARGET
    if message and not any(condition.type == target for condition in others):
        yield _condition(target, holds=True, reason=BY_KUBELET, message=message)


def _transition_time(condition: PodCondition, before: PodCondition | None, now: Time) -> Time:
    if before is None or before.status != condition.status or before.last_transition_time is None:
        return now
    if condition.type == PodConditionType.RESIZE_PENDING and condition.reason != before.reason:
        return now  # What waits for long goes first: not one that was infeasible until now.
    return before.last_transition_time


def _condition(
    condition_type: PodConditionType, *, holds: bool, reason: str = "", message: str = ""
) -> PodCondition:
    return PodCondition(
        type=condition_type.value,
        status=(ConditionStatus.TRUE if holds else ConditionStatus.FALSE).value,
        reason=reason,
        message=message,
    )


def _ready_to_start_containers(pod: Pod, observed: ObservedPod) -> PodCondition:
    """KEP-3085: whether there is a sandbox, with its network, that containers can go into."""
    sandbox = observed.usable_sandbox(host_network=bool(pod.spec.host_network))
    holds = isinstance(sandbox, ObservedSandbox)
    return _condition(PodConditionType.READY_TO_START_CONTAINERS, holds=holds)


def _all_containers_restarting(
    pod: Pod, observed: ObservedPod, phase: PodPhase
) -> Iterator[PodCondition]:
    """The condition of a pod whose rules may restart all of its containers (KEP-5532)."""
    kind = PodConditionType.ALL_CONTAINERS_RESTARTING
    if not may_restart_all(pod):
        return
    if phase in ENDED_REASONS:
        yield _condition(kind, holds=False, reason=ENDED_REASONS[phase])
    elif is_restarting_all(pod, observed):
        yield _condition(kind, holds=True, reason=RESTART_STARTED, message=RESTART_MESSAGE)
    else:
        yield _condition(kind, holds=False)


def _initialized(
    pod: Pod, statuses: ContainerStatuses, phase: PodPhase, before: PodCondition | None
) -> PodCondition:
    """True if regular containers may run; that all restart takes it back from no pod."""
    kind = PodConditionType.INITIALIZED
    if phase is PodPhase.SUCCEEDED:
        return _condition(kind, holds=True, reason=ENDED_REASONS[phase])
    incomplete = [
        container.name
        for container, status in zip(pod.spec.init_containers, statuses.init, strict=True)
        if not _is_through(init_role(container), status)
    ]
    was_initialized = before is not None and before.status == ConditionStatus.TRUE
    if may_restart_all(pod) and was_initialized:
        return _condition(kind, holds=True)
    if not incomplete or any(_has_started(status) for status in statuses.regular):
        return _condition(kind, holds=True)
    return _condition(
        kind,
        holds=False,
        reason="ContainersNotInitialized",
        message=f"containers with incomplete status: {_listed(incomplete)}",
    )


def _is_through(role: ContainerRole, status: ContainerStatus) -> bool:
    return bool(status.started) if role is ContainerRole.SIDECAR else status.ready


def _has_started(status: ContainerStatus) -> bool:
    running = status.state is not None and status.state.running is not None
    return running or terminated(status) is not None


def _containers_ready(pod: Pod, statuses: ContainerStatuses, phase: PodPhase) -> PodCondition:
    kind = PodConditionType.CONTAINERS_READY
    if reason := ENDED_REASONS.get(phase):
        return _condition(kind, holds=False, reason=reason)
    sidecars = (
        status
        for container, status in zip(pod.spec.init_containers, statuses.init, strict=True)
        if init_role(container) is ContainerRole.SIDECAR
    )
    needed = (*sidecars, *statuses.regular)
    unready = [status.name for status in needed if not status.ready]
    if not unready:
        return _condition(kind, holds=True)
    return _condition(
        kind,
        holds=False,
        reason="ContainersNotReady",
        message=f"containers with unready status: {_listed(unready)}",
    )


def _ready(
    pod: Pod, containers_ready: PodCondition, others: Iterable[PodCondition]
) -> PodCondition:
    """The condition Ready: that of the containers, if the readiness gates agree (KEP-580)."""
    if containers_ready.status != ConditionStatus.TRUE:
        return evolve(containers_ready, type=PodConditionType.READY.value)
    found = {condition.type: condition.status for condition in others}
    closed = [
        _gate_message(gate.condition_type, found.get(gate.condition_type))
        for gate in pod.spec.readiness_gates
        if found.get(gate.condition_type) != ConditionStatus.TRUE
    ]
    if not closed:
        return evolve(containers_ready, type=PodConditionType.READY.value)
    return _condition(
        PodConditionType.READY,
        holds=False,
        reason="ReadinessGatesNotReady",
        message=_cut_list(closed),
    )


def _cut_list(messages: Sequence[str]) -> str:
    """The first messages, and the number of others: a pod may have tens of thousands of gates."""
    more = len(messages) - MOST_GATES_NAMED
    return ", ".join((*messages[:MOST_GATES_NAMED], *((f"and {more} more",) if more > 0 else ())))


def _gate_message(condition_type: str, status: str | None) -> str:
    if status is None:
        return f'corresponding condition of pod readiness gate "{condition_type}" does not exist.'
    return f'the status of pod readiness gate "{condition_type}" is not "True", but {status}'


def _listed(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"
