"""The status for the API: the node's newest status, joined with what the API has of others.

The node and others write into the same status. Each has its own part: conditions that are not
the node's, claims, and the nomination are passed on as the API has them. And some things are
final, or older than this agent: a terminal phase with its words, how containers ended under it,
the start time, since when a condition holds. Pure; `writer.py` sends the outcome.
"""

from collections.abc import Iterable, Iterator

from attrs import evolve

from state_machines.container import ContainerRole, restarts_after
from trio_kubelet.k8s import (
    TERMINAL_PHASES,
    ConditionStatus,
    ContainerStatus,
    Pod,
    PodCondition,
    PodConditionType,
    PodPhase,
    PodStatus,
)
from trio_kubelet.runtime.restarts import may_restart_all, restart_terms
from trio_kubelet.status.conditions import ENDED_REASONS, OWN_CONDITIONS
from trio_kubelet.status.container_statuses import terminated

_OVER = frozenset({PodConditionType.READY, PodConditionType.CONTAINERS_READY})
"""The conditions that are never true of a pod that has ended."""


def set_by_others(pod: Pod) -> tuple[object, ...]:
    """The parts of a pod's status that others write and the node acts on.

    An end of the pod (the garbage collector of the control plane ends pods of lost nodes), and the
    conditions that its readiness waits for (KEP-580).
    """
    gates = {gate.condition_type for gate in pod.spec.readiness_gates}
    conditions = {c.type: c.status for c in pod.status.conditions if c.type in gates}
    return pod.status.phase in TERMINAL_PHASES, conditions


def merged_status(known: PodStatus, own: PodStatus, *, keeps_ends: bool = False) -> PodStatus:
    """The status to show, of what the API has (`known`) and what the node says (`own`).

    Equal to `known` where the node has nothing new to say. With `keeps_ends` a container that the
    API shows as terminated stays so until its next instance has ended: the API refuses a way back
    that the restart policy does not have.
    """
    if keeps_ends:
        own = evolve(
            own,
            init_container_statuses=_kept_ends(
                known.init_container_statuses, own.init_container_statuses
            ),
            container_statuses=_kept_ends(known.container_statuses, own.container_statuses),
            ephemeral_container_statuses=_kept_ends(
                known.ephemeral_container_statuses, own.ephemeral_container_statuses
            ),
        )
    merged = evolve(
        own,
        start_time=known.start_time or own.start_time,
        resource_claim_statuses=known.resource_claim_statuses,
        extended_resource_claim_status=known.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=known.node_allocatable_resource_claim_statuses,
        nominated_node_name=known.nominated_node_name,
    )
    if known.phase in TERMINAL_PHASES:
        merged = _ended(known, merged)
    if merged.phase in TERMINAL_PHASES:
        closed = tuple(_closed(merged.conditions, PodPhase(merged.phase)))
        merged = evolve(merged, conditions=closed)
    return evolve(merged, conditions=tuple(_conditions(known, merged)))


def _ended(known: PodStatus, own: PodStatus) -> PodStatus:
    """The node's status of a pod that the API shows as ended: what was told stands."""
    return evolve(
        own,
        phase=known.phase,
        reason=known.reason,
        message=known.message,
        init_container_statuses=_with_ends(
            known.init_container_statuses, own.init_container_statuses
        ),
        container_statuses=_with_ends(known.container_statuses, own.container_statuses),
    )


def _closed(conditions: Iterable[PodCondition], phase: PodPhase) -> Iterator[PodCondition]:
    for condition in conditions:
        if condition.type in _OVER and condition.status == ConditionStatus.TRUE:
            yield evolve(condition, status=ConditionStatus.FALSE.value, reason=ENDED_REASONS[phase])
        else:
            yield condition


def with_final_ends(pod: Pod, own: PodStatus) -> PodStatus:
    """The node's status, as far as the API takes it of containers that are made once more.

    The API lets no container of `pod`, which is as the API shows it, back from an end that is
    final: it stays shown until the next one. That is the end of any ephemeral container, which a
    new agent takes for one that is still to be made where its remains were removed; and, as a new
    sandbox is initialized anew, that of an init container whose policy makes it final.
    """
    ephemeral = _kept_ends(
        pod.status.ephemeral_container_statuses, own.ephemeral_container_statuses
    )
    own = evolve(own, ephemeral_container_statuses=ephemeral)
    if may_restart_all(pod):
        return own
    ends = {
        status.name: end.exit_code
        for status in pod.status.init_container_statuses
        if (end := terminated(status)) is not None
    }
    # The API goes by the policy as for a regular container: under Always no end is final.
    final = {
        container.name
        for container in pod.spec.init_containers
        if container.name in ends
        and not restarts_after(
            restart_terms(pod, container, ContainerRole.REGULAR), ends[container.name]
        )
    }
    known = tuple(s for s in pod.status.init_container_statuses if s.name in final)
    return evolve(own, init_container_statuses=_kept_ends(known, own.init_container_statuses))


def _kept_ends(
    known: tuple[ContainerStatus, ...], own: tuple[ContainerStatus, ...]
) -> tuple[ContainerStatus, ...]:
    ends = {status.name: status for status in known if terminated(status) is not None}
    return tuple(
        status if terminated(status) is not None else ends.get(status.name, status)
        for status in own
    )


def _with_ends(
    known: tuple[ContainerStatus, ...], own: tuple[ContainerStatus, ...]
) -> tuple[ContainerStatus, ...]:
    """The node's statuses, but how a container ended is not forgotten for one that waits."""
    ends = {status.name: status for status in known if terminated(status) is not None}
    return tuple(
        ends[status.name] if status.name in ends and _waits(status) else status for status in own
    )


def _waits(status: ContainerStatus) -> bool:
    state = status.state
    return state is None or (state.running is None and state.terminated is None)


def _conditions(known: PodStatus, own: PodStatus) -> Iterator[PodCondition]:
    """Others' conditions as the API has them, then the node's, each since when it holds.

    A disruption that the node causes is told with the end of the pod, and only if nobody else
    has told of one.
    """
    before = {condition.type: condition for condition in known.conditions}
    yield from (c for c in known.conditions if c.type not in OWN_CONDITIONS)
    if own.phase in TERMINAL_PHASES and PodConditionType.DISRUPTION_TARGET not in before:
        yield from (c for c in own.conditions if c.type == PodConditionType.DISRUPTION_TARGET)
    for condition in own.conditions:
        if condition.type in OWN_CONDITIONS:
            yield _since(condition, before.get(condition.type))


def _since(condition: PodCondition, before: PodCondition | None) -> PodCondition:
    if before is None or before.status != condition.status or before.last_transition_time is None:
        return condition
    return evolve(condition, last_transition_time=before.last_transition_time)
