"""A plan for the containers of a pod: the values that it is made of, made from and comes to.

`planning.py` makes plans, `pod_runtime.py` carries them out.
"""

from collections.abc import Mapping

from attrs import field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.container import CONTAINER, ContainerEvent, ContainerRole, RestartEvidence
from state_machines.image import WAITING_REASONS, ImageState
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.runtime.lifecycle.container_table import ContainerRecord, Decision, Reason
from trio_kubelet.runtime.lifecycle.resize_plan import ResizePlan
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedSandbox

_IMAGE_PULL_BACK_OFF = WAITING_REASONS[ImageState.BACK_OFF]


@frozen(kw_only=True)
class StopContainer:
    """Stop a running container."""

    container: ObservedContainer
    message: str
    """The text of the event `Killing`."""
    grace_seconds: int | None = None
    """Its own grace; None: the pod's."""
    at_once: bool = False
    """With the least grace, and without hooks."""


@frozen(kw_only=True)
class StartContainer:
    """Create and start a container."""

    container: Container
    role: ContainerRole
    predecessor: ObservedContainer | None = None
    """The instance whose place it takes."""


@frozen(kw_only=True)
class Postponed:
    """A container that waits for its back-off."""

    container: Container
    until_ns: int
    """The earliest start, in nanoseconds since the epoch."""
    message: str


@frozen(kw_only=True)
class NewSandbox:
    """A sandbox that is to be made."""

    attempt: int = 0
    replaces: str = ""
    """The fault of the one before; empty if there was none."""


@frozen(kw_only=True)
class Plan:
    """The next steps for a pod, carried out in the order of the fields."""

    decisions: tuple[Decision, ...] = ()
    """The events of containers, checked before anything is done."""
    stop_pod: bool = False
    """Stop everything that runs, then the sandboxes."""
    stop: tuple[StopContainer, ...] = ()
    remove: tuple[ObservedContainer, ...] = ()
    """Ended containers that go, but for their logs."""
    sandbox: ObservedSandbox | NewSandbox | None = None
    """The sandbox that containers start in; None: the pod is to have none."""
    starts_over: bool = False
    """All containers of the pod restart: what was made in the sandbox before counts no more."""
    resize: ResizePlan | None = None
    """Other resources for what runs, and for the pod as a whole."""
    start: tuple[StartContainer, ...] = ()
    postponed: tuple[Postponed, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the runtime is asked for nothing now."""
        makes_sandbox, resizes = isinstance(self.sandbox, NewSandbox), self.resize is not None
        return not any((self.stop_pod, self.stop, self.remove, makes_sandbox, resizes, self.start))

    @property
    def gives_up(self) -> bool:
        """True if the pod is stopped, and nothing of it is started again."""
        return self.stop_pod and self.sandbox is None

    @property
    def due_ns(self) -> int | None:
        """The earliest start of a postponed container, in nanoseconds since the epoch."""
        return min((postponed.until_ns for postponed in self.postponed), default=None)


@frozen(kw_only=True)
class PlanContext:
    """The facts that a plan needs beside the pod and its observation."""

    now_ns: int
    """The time of day, in nanoseconds since the epoch."""
    hashes: Mapping[str, str] = field(factory=dict)
    """The hash of each container of the spec, by name."""
    containers: Mapping[str, ContainerRecord] = field(factory=dict)
    """The records of the table, by name."""
    backoff_policy: BackoffPolicy = field(factory=BackoffPolicy)
    failed_probes: Mapping[str, str] = field(factory=dict)
    """The probe that failed (`liveness`, `startup`), by the id of the container to be restarted."""
    unstarted: frozenset[str] = frozenset()
    """The ids of running containers whose startup probe has not succeeded yet."""
    resize: ResizePlan | None = None
    """The part of its allocation that the pod lacks; None if it lacks nothing."""


@frozen(kw_only=True)
class PlannedContainer:
    """One container of the spec, what is known of it, and what its policy goes by."""

    container: Container
    role: ContainerRole
    record: ContainerRecord
    evidence: RestartEvidence
    hash: str
    """The hash of an instance that is made of it now; empty if none can be made."""

    @property
    def name(self) -> str:
        return self.container.name

    @property
    def instance_id(self) -> str:
        """The id of its newest instance; empty if there is none."""
        return self.record.instance.id if self.record.instance is not None else ""

    @property
    def is_changed(self) -> bool:
        """True if its newest instance was made of another definition."""
        made_of = self.record.instance.hash if self.record.instance is not None else ""
        return bool(made_of) and made_of != self.hash

    def is_in(self, sandbox_id: str) -> bool:
        """True if its newest instance was made in this sandbox."""
        instance = self.record.instance
        return instance is not None and instance.sandbox_id == sandbox_id

    def allows(self, event: ContainerEvent) -> bool:
        """Ask the table for its leave to decide this."""
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


@frozen(kw_only=True)
class Planning:
    """One pod that is planned: its spec, what was observed and is known, its containers."""

    pod: Pod
    observed: ObservedPod
    context: PlanContext
    containers: tuple[PlannedContainer, ...]
    """Those of the spec, in the order in which they are started."""

    def of_role(self, *roles: ContainerRole) -> list[PlannedContainer]:
        return [each for each in self.containers if each.role in roles]


@frozen(kw_only=True)
class NewContainers:
    """A sandbox and the containers that were started in it, by their ids."""

    sandbox_id: str
    containers: tuple[str, ...]


@frozen(kw_only=True)
class PlanResult:
    """The result of a plan: why something failed, else what was made, if anything was."""

    failures: tuple[Reason, ...] = ()
    resize_error: str = ""
    made: NewContainers | None = None


@frozen(kw_only=True)
class RuntimeOutcome:
    """The result of a sync."""

    observed: ObservedPod
    failed: bool = False
    """Something did not work and is to be tried again."""
    due_ns: int | None = None
    """The earliest start of a postponed container, in nanoseconds since the epoch."""
    resize_error: str = ""
    """Why the pod could not be given what it is allocated."""


def failed_outcome(result: PlanResult, plan: Plan, observed: ObservedPod) -> RuntimeOutcome:
    """Ask for another try of what did not work: soon, or when its image's back-off is over.

    A pull that has just failed is looked at again soon, too: that look finds the back-off, and
    then the status says ImagePullBackOff.
    """
    times = [reason.until_ns for reason in result.failures if reason.until_ns is not None]
    return RuntimeOutcome(
        observed=observed,
        failed=any(reason.reason != _IMAGE_PULL_BACK_OFF for reason in result.failures),
        due_ns=min([*times, *([] if plan.due_ns is None else [plan.due_ns])], default=None),
        resize_error=result.resize_error,
    )
