"""Which containers of a plan start now, and which have to wait for their back-off: pure.

Only a container that is restarted waits: after an end of its own, or after it was stopped for a
failed probe too soon after the end before.
"""

import math
from collections.abc import Iterable

from state_machines.backoff import remaining_seconds
from state_machines.container import ContainerEvent, ContainerStage
from trio_kubelet.k8s import Duration, Pod
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.lifecycle.plan import (
    PlanContext,
    PlannedContainer,
    Postponed,
    StartContainer,
)
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState


def due_starts(
    pod: Pod, wanted: Iterable[PlannedContainer], observed: ObservedPod, given: PlanContext
) -> tuple[tuple[StartContainer, ...], tuple[Postponed, ...]]:
    """What starts now, and what has to wait for its back-off."""
    starts: list[StartContainer] = []
    postponed: list[Postponed] = []
    for planned in wanted:
        last = observed.container(planned.name) or planned.record.instance
        wait_seconds = _backoff_seconds(planned, observed, given)
        if wait_seconds > 0:
            postponed.append(_postponed(pod, planned, given, wait_seconds))
        else:
            order = StartContainer(container=planned.container, role=planned.role, predecessor=last)
            starts.append(order)
    return tuple(starts), tuple(postponed)


def _backoff_seconds(planned: PlannedContainer, observed: ObservedPod, given: PlanContext) -> float:
    """How long a container must still wait. Only one that is restarted ever has to."""
    last, waits = planned.record.instance, planned.record.is_restart
    if planned.record.state is ContainerStage.EXITED:
        waits = planned.allows(ContainerEvent.RESTARTED)
    elif waits and last is not None and planned.record.was_stopped:
        waits = _failed_probes_too_often(planned, last, observed, given)
    if last is None or not waits or last.state is not ObservedState.EXITED:
        return 0.0
    return remaining_seconds(
        planned.record.backoff,
        given.backoff_policy,
        failed_at_ns=last.finished_at,
        now_ns=given.now_ns,
    )


def _failed_probes_too_often(
    planned: PlannedContainer, last: ObservedContainer, observed: ObservedPod, given: PlanContext
) -> bool:
    """Whether an instance that was stopped for its probe ended within the back-off of another.

    One that ran for longer than that is restarted at once, as by the Go kubelet. If the runtime
    has no record of the end before, this one counts as too soon.
    """
    others = (c for c in observed.containers if c.name == planned.name and c.id != last.id)
    before = next((c for c in others if c.state is ObservedState.EXITED), None)
    if before is None:
        return True
    remaining = remaining_seconds(
        planned.record.backoff,
        given.backoff_policy,
        failed_at_ns=before.finished_at,
        now_ns=last.finished_at,
    )
    return remaining > 0


def _postponed(
    pod: Pod, planned: PlannedContainer, given: PlanContext, wait_seconds: float
) -> Postponed:
    assert planned.record.backoff is not None, "who waits has a back-off"
    delay = Duration.from_seconds(planned.record.backoff.delay_seconds)
    return Postponed(
        container=planned.container,
        until_ns=given.now_ns + math.ceil(wait_seconds * 1e9),
        message=(
            f"back-off {delay} restarting failed container={planned.name} pod={pod_full_name(pod)}"
        ),
    )
