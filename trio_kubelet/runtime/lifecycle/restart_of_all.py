"""What is to be done when the exit of one container restarts all of its pod (KEP-5532).

The sandbox, its address and the volumes stay. All that runs is stopped, with the least grace and
without hooks, and what has ended is removed from the runtime: an agent that is started meanwhile
finds what is left to do, and does not take the end of a removed container for a new one. The
container whose exit was the cause goes last, so that the cause stays known until all others are
gone. Then the pod starts as a new one does. Only the cause waits for its back-off.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from state_machines.container import (
    LIVING,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    restarts_after,
    restarts_all,
)
from trio_kubelet.k8s import Pod
from trio_kubelet.restarts import may_restart_all, restart_terms, roles
from trio_kubelet.runtime.lifecycle.container_table import Decision
from trio_kubelet.runtime.lifecycle.plan import (
    PlanContext,
    PlannedContainer,
    PodActions,
    StopContainer,
    due_starts,
)
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState


def exits_that_restart_all(
    pod: Pod, ended: Mapping[str, ObservedContainer], sandbox_id: str
) -> frozenset[str]:
    """The names of containers whose exit in this sandbox restarts all.

    `ended` are the newest instances of those that have ended, by name. A sidecar restarts nothing
    in a pod that was through before: it may have been stopped for that.
    """
    through_ns = _through_ns(pod, ended)
    return frozenset(
        container.name
        for container, role in roles(pod)
        if (end := ended.get(container.name)) is not None
        and end.sandbox_id == sandbox_id
        and restarts_all(restart_terms(pod, container, role), end.exit_code)
        and not (role is ContainerRole.SIDECAR and through_ns < end.finished_at)
    )


def _through_ns(pod: Pod, ended: Mapping[str, ObservedContainer]) -> float:
    """When the last regular container came to its end for good; infinite if one did not."""
    times = [-math.inf]
    for container in pod.spec.containers:
        end = ended.get(container.name)
        terms = restart_terms(pod, container, ContainerRole.REGULAR)
        if end is None or restarts_after(terms, end.exit_code):
            return math.inf
        times.append(end.finished_at)
    return max(times)


def is_restarting_all(pod: Pod, observed: ObservedPod) -> bool:
    """Whether the runtime shows an exit that restarts all, and so not all is removed yet."""
    sandbox = observed.ready_sandbox
    if sandbox is None or not may_restart_all(pod):
        return False
    newest = {each.name: each for each in reversed(observed.containers)}
    ended = {name: c for name, c in newest.items() if c.state is ObservedState.EXITED}
    return bool(exits_that_restart_all(pod, ended, sandbox.id))


def causes_of_restart(
    pod: Pod, everything: Iterable[PlannedContainer], sandbox_id: str
) -> tuple[PlannedContainer, ...]:
    """The containers whose exit restarts all, and of which that was not decided yet."""
    if not may_restart_all(pod):
        return ()
    exited = [each for each in everything if each.record.state is ContainerStage.EXITED]
    ended = {each.name: each.record.instance for each in exited if each.record.instance}
    names = exits_that_restart_all(pod, ended, sandbox_id)
    return tuple(each for each in exited if each.name in names)


def plan_restart_of_all(
    pod: Pod,
    observed: ObservedPod,
    given: PlanContext,
    everything: Sequence[PlannedContainer],
    causes: Sequence[PlannedContainer],
    sandbox_id: str,
) -> PodActions:
    """The next step: stop what runs, then remove what was made, then start from the beginning."""
    ours = [each for each in everything if each.role is not ContainerRole.EPHEMERAL]
    if stopped := [each for each in everything if _runs(each, observed)]:
        cause = f"exit code {causes[0].evidence.exit_code} of {causes[0].name} restarts all"
        return PodActions(
            sandbox_id=sandbox_id,
            decisions=tuple(_stop(each, cause) for each in stopped),
            stop=tuple(_order(each) for each in stopped),
        )
    names, last = {each.name for each in ours}, {each.instance_id for each in causes}
    made = [each for each in observed.containers if each.name in names]
    if made:
        removed = [each for each in made if each.id not in last] or made
        return PodActions(sandbox_id=sandbox_id, remove=tuple(removed))
    initial = [each for each in ours if each.role is not ContainerRole.REGULAR]
    starts, postponed = due_starts(pod, initial[:1] or ours, observed, given)
    return PodActions(
        sandbox_id=sandbox_id,
        starts_over=True,
        decisions=tuple(_decisions(ours, causes[0].name)),
        start=starts,
        postponed=postponed,
    )


def _runs(planned: PlannedContainer, observed: ObservedPod) -> bool:
    """Whether it is to be stopped; nobody knows how an ephemeral one is that was lost."""
    state, id_ = planned.record.state, planned.instance_id
    if planned.role is ContainerRole.EPHEMERAL and state is ContainerStage.UNKNOWN:
        return False
    return state in LIVING and any(each.id == id_ for each in observed.living)


def _stop(planned: PlannedContainer, cause: str) -> Decision:
    anew = planned.role is not ContainerRole.EPHEMERAL and planned.allows(ContainerEvent.REPLACED)
    return planned.decide(ContainerEvent.REPLACED if anew else ContainerEvent.STOPPED, cause)


def _order(planned: PlannedContainer) -> StopContainer:
    instance = planned.record.instance
    assert isinstance(instance, ObservedContainer), "what runs was seen"
    message = f"Stopping container {planned.name}"
    return StopContainer(container=instance, message=message, at_once=True)


def _decisions(ours: Iterable[PlannedContainer], cause: str) -> Iterable[Decision]:
    """Another instance of each, by its policy where that asks for one, too."""
    for each in ours:
        if each.allows(ContainerEvent.RESTARTED):
            why = f"exit code {each.evidence.exit_code}"
            yield each.decide(ContainerEvent.RESTARTED, why, is_restart=True)
        elif each.allows(ContainerEvent.REPLACED):
            yield each.decide(ContainerEvent.REPLACED, f"the exit of {cause} restarts all")
