"""A plan for the containers of a pod, and what it is made of: values only.

`actions.py` makes plans, `start_backoff.py` says which of their starts must wait, and
`pod_runtime.py` carries them out.
"""

from collections.abc import Mapping

from attrs import field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.container import CONTAINER, ContainerEvent, ContainerRole, RestartEvidence
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.restarts import init_role, restart_terms
from trio_kubelet.runtime.lifecycle.container_table import UNTOUCHED, ContainerRecord, Decision
from trio_kubelet.runtime.observed import ObservedContainer


@frozen(kw_only=True)
class StopContainer:
    """Stop a running container. `message` is what the event `Killing` says.

    `grace_seconds` is its own grace; None: the pod's. `at_once`: without grace and hooks.
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
        """Its name in the pod."""
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
        """The event as a decision about it."""
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
