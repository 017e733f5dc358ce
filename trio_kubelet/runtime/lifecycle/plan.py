"""A plan for the containers of a pod: what it is made of, what must wait, what came of it. Pure.

`actions.py` makes plans, `pod_runtime.py` carries them out. Only a container that is restarted
waits for its back-off: after an end of its own, or after it was stopped for a failed probe too soon
after the end before.
"""

import math
from collections.abc import Collection, Iterable, Mapping

from attrs import field, frozen

from state_machines.backoff import BackoffPolicy, remaining_seconds
from state_machines.container import (
    CONTAINER,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    RestartEvidence,
)
from state_machines.image import WAITING_REASONS, ImageState
from trio_kubelet.k8s import Container, Duration, Pod
from trio_kubelet.restarts import init_role, restart_terms
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.lifecycle.container_table import (
    UNTOUCHED,
    ContainerRecord,
    Decision,
    Reason,
)
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

IMAGE_PULL_BACK_OFF = WAITING_REASONS[ImageState.BACK_OFF]


@frozen(kw_only=True)
class StopContainer:
    """Stop a running container. `message` is what the event `Killing` says.

    `grace_seconds` is its own grace; None: the pod's. `at_once`: with the least grace, and without
    hooks.
    """

    container: ObservedContainer
    message: str
    grace_seconds: int | None = None
    at_once: bool = False


@frozen(kw_only=True)
class StartContainer:
    """Create and start a container; `predecessor` is the one whose place it takes."""

    container: Container
    role: ContainerRole
    predecessor: ObservedContainer | None = None


@frozen(kw_only=True)
class Postponed:
    """A container that may start only at `until_ns` (nanoseconds since the epoch)."""

    container: Container
    until_ns: int
    message: str


@frozen(kw_only=True)
class PodActions:
    """A plan. Carried out in the order of the fields.

    `decisions`: what becomes of containers, checked before anything is done. `stop_pod`: stop
    everything that runs, then the sandboxes. `remove`: what has ended goes, but for its logs.
    `create_sandbox`: make a new one with `attempt`; otherwise containers go into `sandbox_id`.
    `sandbox_changed`: there was one before, so users are told. `starts_over`: all containers of the
    pod restart, and what was made in the sandbox before does not count any more.
    """

    decisions: tuple[Decision, ...] = ()
    stop_pod: bool = False
    stop: tuple[StopContainer, ...] = ()
    remove: tuple[ObservedContainer, ...] = ()
    create_sandbox: bool = False
    sandbox_changed: bool = False
    attempt: int = 0
    sandbox_id: str = ""
    starts_over: bool = False
    start: tuple[StartContainer, ...] = ()
    postponed: tuple[Postponed, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the runtime is asked for nothing now."""
        acts = (self.stop_pod, self.stop, self.remove, self.create_sandbox, self.start)
        return not any(acts)


@frozen(kw_only=True)
class PlanContext:
    """What a plan needs to know beside the pod and its observation.

    `containers` are the records of the table, by name. `now_ns` is nanoseconds since the epoch.
    `failed_probes` names, for ids of containers that must be restarted, the probe that failed
    (`liveness`, `startup`). `unstarted` are the ids of running containers whose startup probe has
    not succeeded yet.
    """

    now_ns: int
    containers: Mapping[str, ContainerRecord] = field(factory=dict)
    backoff_policy: BackoffPolicy = field(factory=BackoffPolicy)
    failed_probes: Mapping[str, str] = field(factory=dict)
    unstarted: frozenset[str] = frozenset()


@frozen(kw_only=True)
class PlannedContainer:
    """One container of the spec, what is known of it, and what its policy goes by."""

    container: Container
    role: ContainerRole
    record: ContainerRecord
    evidence: RestartEvidence

    @property
    def name(self) -> str:
        return self.container.name

    @property
    def instance_id(self) -> str:
        """The id of its newest instance; empty if there is none."""
        return self.record.instance.id if self.record.instance is not None else ""

    def is_in(self, sandbox_id: str) -> bool:
        """Whether its newest instance was made in this sandbox."""
        instance = self.record.instance
        return instance is not None and instance.sandbox_id == sandbox_id

    def allows(self, event: ContainerEvent) -> bool:
        """Whether the table allows this to be decided about it."""
        return CONTAINER.allows(self.record.state, event, self.evidence)

    def decide(
        self, event: ContainerEvent, cause: str = "", *, is_restart: bool = False
    ) -> Decision:
        return Decision(
            name=self.name,
            event=event,
            evidence=self.evidence,
            is_restart=is_restart,
            cause=cause,
        )


def planned_container(
    pod: Pod, container: Container, role: ContainerRole, given: PlanContext
) -> PlannedContainer:
    """A container of the spec, with its record."""
    record = given.containers.get(container.name, UNTOUCHED)
    exit_code = record.instance.exit_code if record.instance is not None else 0
    terms = restart_terms(pod, container, role)
    evidence = RestartEvidence(terms=terms, exit_code=exit_code)
    return PlannedContainer(container=container, role=role, record=record, evidence=evidence)


def planned_containers(pod: Pod, given: PlanContext) -> tuple[PlannedContainer, ...]:
    """All containers of the spec, in the order in which they are started."""
    spec = pod.spec
    return (
        *(
            planned_container(pod, c, ContainerRole.EPHEMERAL, given)
            for c in spec.ephemeral_containers
        ),
        *(planned_container(pod, c, init_role(c), given) for c in spec.init_containers),
        *(planned_container(pod, c, ContainerRole.REGULAR, given) for c in spec.containers),
    )


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


@frozen(kw_only=True)
class RuntimeOutcome:
    """What a sync came to.

    `failed`: something did not work and is to be tried again. `due_ns`: the earliest time
    (nanoseconds since the epoch) at which a postponed container may start.
    """

    observed: ObservedPod
    failed: bool = False
    due_ns: int | None = None


@frozen(kw_only=True)
class Made:
    """A sandbox and the containers that were started in it, by their ids."""

    sandbox_id: str
    containers: tuple[str, ...]


@frozen(kw_only=True)
class Done:
    """What came of a plan: why something failed, else what it made, if it was to make anything."""

    failures: tuple[Reason, ...] = ()
    made: Made | None = None


def is_empty(observed: ObservedPod) -> bool:
    """Whether nothing of the pod was there: then what was just made is all."""
    return not observed.sandboxes and not observed.containers


def have_stopped(observed: ObservedPod, orders: Iterable[StopContainer]) -> bool:
    """Whether all that had to stop has."""
    living = {container.id for container in observed.living}
    return living.isdisjoint(order.container.id for order in orders)


def failed_outcome(
    observed: ObservedPod, plan: PodActions, failures: Collection[Reason]
) -> RuntimeOutcome:
    """What did not work is tried again: soon, or when the back-off of its image is over.

    A pull that has just failed is looked at again soon, too: that look finds the back-off, and
    then the status says ImagePullBackOff.
    """
    times = [reason.until_ns for reason in failures if reason.until_ns is not None]
    return RuntimeOutcome(
        observed=observed,
        failed=any(reason.reason != IMAGE_PULL_BACK_OFF for reason in failures),
        due_ns=min([*times, *(postponed.until_ns for postponed in plan.postponed)], default=None),
    )


def due_ns(plan: PodActions) -> int | None:
    """When the first postponed container may start, in nanoseconds since the epoch."""
    return min((postponed.until_ns for postponed in plan.postponed), default=None)
