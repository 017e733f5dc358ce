"""What must be done to bring a pod's containers from where they stand to what is wanted.

`plan_pod` is a pure function and gives a `PodActions`; `pod_runtime.py` carries it out. What is to
be done with a container follows from its state in the table (`container_table.py`), which what was
observed has stepped before; what is decided is an event that the table must allow. Here is what is
a matter of order: the sandbox, what must be stopped, ephemeral containers, init containers
(restartable ones included), regular containers, as in the Go kubelet. A plan starts nothing in a
sandbox that it is about to replace, and stops nothing that it could leave alone. What may not be
restarted yet is named with the time at which it may.
"""

import math
from collections.abc import Callable, Iterable, Mapping

from attrs import evolve, field, frozen

from state_machines.backoff import BackoffPolicy, remaining_seconds
from state_machines.container import (
    CONTAINER,
    LIVING,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    RestartEvidence,
    RestartPolicy,
    restarts_after,
)
from trio_kubelet.k8s import Container, Duration, Pod
from trio_kubelet.restarts import init_role, is_sidecar, restart_terms
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.lifecycle.container_table import UNTOUCHED, ContainerRecord, Decision
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

STOPPED_EXIT_CODE = 137
"""What a container that the agent stops is taken to exit with."""


@frozen(kw_only=True)
class StopContainer:
    """Stop a running container. `message` is what the event `Killing` says.

    `grace_seconds` is its own grace; None: the pod's.
    """

    container: ObservedContainer
    message: str
    grace_seconds: int | None = None


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
    everything that runs, then the sandboxes. `create_sandbox`: make a new one with `attempt`;
    otherwise containers go into `sandbox_id`. `sandbox_changed`: there was one before, so users
    are told.
    """

    decisions: tuple[Decision, ...] = ()
    stop_pod: bool = False
    stop: tuple[StopContainer, ...] = ()
    create_sandbox: bool = False
    sandbox_changed: bool = False
    attempt: int = 0
    sandbox_id: str = ""
    start: tuple[StartContainer, ...] = ()
    postponed: tuple[Postponed, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the runtime is asked for nothing now."""
        return not (self.stop_pod or self.stop or self.create_sandbox or self.start)


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


def plan_pod(pod: Pod, observed: ObservedPod, given: PlanContext) -> PodActions:
    """The next steps for a pod that should run."""
    attempt, reusable = _sandbox(pod, observed)
    if reusable is None:
        return _plan_with_new_sandbox(pod, observed, given, attempt)
    return _plan_in_sandbox(pod, observed, given, reusable)


def _sandbox(pod: Pod, observed: ObservedPod) -> tuple[int, str | None]:
    """The attempt of the next sandbox, and the id of the present one if it can be used."""
    if not observed.sandboxes:
        return 0, None
    usable = observed.usable_sandbox(host_network=bool(pod.spec.host_network))
    return observed.sandboxes[0].attempt + 1, usable.id if usable is not None else None


@frozen(kw_only=True)
class _Planned:
    """One container of the spec, and what is known of it."""

    container: Container
    role: ContainerRole
    record: ContainerRecord
    evidence: RestartEvidence

    @property
    def name(self) -> str:
        return self.container.name

    @property
    def instance_id(self) -> str:
        return self.record.instance.id if self.record.instance is not None else ""

    def is_in(self, sandbox_id: str) -> bool:
        instance = self.record.instance
        return instance is not None and instance.sandbox_id == sandbox_id

    def allows(self, event: ContainerEvent) -> bool:
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


def _planned_container(
    pod: Pod, container: Container, role: ContainerRole, given: PlanContext
) -> _Planned:
    record = given.containers.get(container.name, UNTOUCHED)
    exit_code = record.instance.exit_code if record.instance is not None else 0
    terms = restart_terms(pod, container, role)
    evidence = RestartEvidence(terms=terms, exit_code=exit_code)
    return _Planned(container=container, role=role, record=record, evidence=evidence)


def _planned_containers(pod: Pod, given: PlanContext) -> tuple[_Planned, ...]:
    """All containers of the spec, in the order in which they are started."""
    spec = pod.spec
    return (
        *(
            _planned_container(pod, c, ContainerRole.EPHEMERAL, given)
            for c in spec.ephemeral_containers
        ),
        *(_planned_container(pod, c, init_role(c), given) for c in spec.init_containers),
        *(_planned_container(pod, c, ContainerRole.REGULAR, given) for c in spec.containers),
    )


@frozen(kw_only=True)
class _Step:
    """What becomes of one container.

    `start`: an instance is wanted as soon as none may run. `passed`: an init container no longer
    holds up the next one. `failed`: it ended for good, and the pod with it.
    """

    planned: _Planned
    decision: Decision | None = None
    stop: StopContainer | None = None
    start: bool = False
    passed: bool = False
    failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or will."""
        return not self.start and (self.decision is not None or self._has_ended)

    @property
    def _has_ended(self) -> bool:
        return self.planned.record.state is ContainerStage.EXITED


def _plan_with_new_sandbox(
    pod: Pod, observed: ObservedPod, given: PlanContext, attempt: int
) -> PodActions:
    """Everything goes with the old sandbox; what is not finished starts over in a new one."""
    everything = _planned_containers(pod, given)
    stop_only = PodActions(decisions=_stop_all(everything), stop_pod=bool(observed.sandboxes))
    never = pod.spec.restart_policy == RestartPolicy.NEVER and not _restarts_by_own_rule(pod)
    if attempt > 0 and observed.containers and never:
        return stop_only
    regular = [s for s in everything if s.role is ContainerRole.REGULAR and _starts_over(s)]
    if not regular:
        return stop_only
    first = [s for s in everything if s.role in (ContainerRole.INIT, ContainerRole.SIDECAR)][:1]
    starts, postponed = _starts(pod, first or regular, observed, given)
    return PodActions(
        decisions=tuple(filter(None, (_replace(s, is_first=s in first) for s in everything))),
        stop_pod=bool(observed.sandboxes),
        create_sandbox=True,
        sandbox_changed=bool(observed.sandboxes),
        attempt=attempt,
        start=starts,
        postponed=postponed,
    )


def _restarts_by_own_rule(pod: Pod) -> bool:
    return any(c.restart_policy or c.restart_policy_rules for c in pod.spec.containers)


def _starts_over(planned: _Planned) -> bool:
    """Whether a regular container is to run again after its sandbox went."""
    if planned.record.state is ContainerStage.EXITED:
        return planned.allows(ContainerEvent.RESTARTED)
    return planned.record.state is not ContainerStage.STOPPING


def _stop_all(everything: Iterable[_Planned]) -> tuple[Decision, ...]:
    """All that may run goes, and nothing takes its place."""
    return tuple(
        planned.decide(ContainerEvent.STOPPED)
        for planned in everything
        if planned.record.state in LIVING
    )


def _replace(planned: _Planned, *, is_first: bool) -> Decision | None:
    """What becomes of a container whose sandbox is replaced."""
    state = planned.record.state
    if state is ContainerStage.CREATED:
        return planned.decide(ContainerEvent.REPLACED)
    if state in LIVING:
        anew = planned.role is not ContainerRole.EPHEMERAL and state is not ContainerStage.STOPPING
        if anew and planned.allows(ContainerEvent.REPLACED):
            return planned.decide(ContainerEvent.REPLACED, "its sandbox is replaced")
        return planned.decide(ContainerEvent.STOPPED)
    if state is ContainerStage.EXITED:
        return _start_over(planned, whatever=is_first)
    return None


def _start_over(planned: _Planned, *, whatever: bool = False) -> Decision | None:
    """Another instance after one that ended, if its policy asks for it, or `whatever` it says."""
    if planned.allows(ContainerEvent.RESTARTED):
        cause = f"exit code {planned.evidence.exit_code}"
        return planned.decide(ContainerEvent.RESTARTED, cause, is_restart=True)
    return planned.decide(ContainerEvent.REPLACED, "its sandbox was replaced") if whatever else None


def _plan_in_sandbox(
    pod: Pod, observed: ObservedPod, given: PlanContext, sandbox_id: str
) -> PodActions:
    """The sandbox stays: containers are started, replaced or left alone one by one."""
    everything = _planned_containers(pod, given)
    init = _plan_init(pod, observed, given, sandbox_id)
    if init.failed:
        return PodActions(decisions=_stop_all(everything), stop_pod=True, sandbox_id=sandbox_id)
    regular = [
        _step(_planned_container(pod, c, ContainerRole.REGULAR, given), given)
        for c in (pod.spec.containers if init.finished else ())
    ]
    if init.finished and all(step.is_over for step in regular):
        return PodActions(decisions=_stop_all(everything), stop_pod=True, sandbox_id=sandbox_id)
    ephemeral = [
        _step(_planned_container(pod, c, ContainerRole.EPHEMERAL, given), given)
        for c in pod.spec.ephemeral_containers
    ]
    steps = (*ephemeral, *init.steps, *regular)
    ready = [step.planned for step in steps if step.start and step.stop is None]
    starts, postponed = _starts(pod, ready, observed, given)
    return PodActions(
        decisions=tuple(step.decision for step in steps if step.decision),
        sandbox_id=sandbox_id,
        stop=tuple(step.stop for step in steps if step.stop),
        start=starts,
        postponed=postponed,
    )


def _step(planned: _Planned, given: PlanContext) -> _Step:
    """What becomes of a container whose turn it is, by its state."""
    return _STEPS[planned.record.state](planned, given)


def _leave(planned: _Planned, _given: PlanContext) -> _Step:
    return _Step(planned=planned)


def _start(planned: _Planned, _given: PlanContext) -> _Step:
    return _Step(planned=planned, start=True)


def _start_anew(planned: _Planned, _given: PlanContext) -> _Step:
    return _Step(planned=planned, start=True, decision=planned.decide(ContainerEvent.REPLACED))


def _after_exit(planned: _Planned, _given: PlanContext) -> _Step:
    if planned.role is ContainerRole.INIT and planned.evidence.exit_code == 0:
        return _Step(planned=planned, passed=True)
    decision = _start_over(planned)
    return _Step(
        planned=planned, decision=decision, start=decision is not None, failed=decision is None
    )


def _when_unknown(planned: _Planned, _given: PlanContext) -> _Step:
    """It is stopped to be sure; an ephemeral one is left alone."""
    if planned.role is ContainerRole.EPHEMERAL:
        return _Step(planned=planned)
    message = "Container is in unknown state, try killing it before restart"
    return _stopped(planned, message, restart=planned.allows(ContainerEvent.REPLACED))


def _when_stopping(planned: _Planned, _given: PlanContext) -> _Step:
    """The stop is made again: it failed, or was cut short."""
    restart = planned.record.state is ContainerStage.REPLACING or _is_changed(planned)
    message = f"Stopping container {planned.name}"
    return _stopped(planned, message, restart=restart, is_restart=planned.record.is_restart)


def _when_running(planned: _Planned, given: PlanContext) -> _Step:
    if planned.role is ContainerRole.INIT or planned.role is ContainerRole.EPHEMERAL:
        # It runs to its end, whatever changes meanwhile.
        return _Step(planned=planned)
    if _is_changed(planned):
        message = f"Container {planned.name} definition changed, will be restarted"
        return _stopped(planned, message, restart=True)
    if probe := given.failed_probes.get(planned.instance_id):
        restart = restarts_after(planned.evidence.terms, STOPPED_EXIT_CODE)
        message = f"Container {planned.name} failed {probe} probe"
        message += ", will be restarted" if restart else ""
        step = _stopped(planned, message, restart=restart, is_restart=True)
        assert step.stop is not None, "what failed a probe is stopped"
        grace_seconds = _probe_grace_seconds(planned.container, probe)
        return evolve(step, stop=evolve(step.stop, grace_seconds=grace_seconds))
    started = planned.role is ContainerRole.SIDECAR and planned.instance_id not in given.unstarted
    return _Step(planned=planned, passed=started)


_STEPS: Mapping[ContainerStage, Callable[[_Planned, PlanContext], _Step]] = {
    ContainerStage.WAITING: _start,
    ContainerStage.CREATED: _start_anew,
    ContainerStage.RUNNING: _when_running,
    ContainerStage.STOPPING: _when_stopping,
    ContainerStage.REPLACING: _when_stopping,
    ContainerStage.EXITED: _after_exit,
    ContainerStage.UNKNOWN: _when_unknown,
    ContainerStage.REMOVED: _leave,
}


def _stopped(planned: _Planned, message: str, *, restart: bool, is_restart: bool = False) -> _Step:
    """A container that goes, and whether another instance takes its place."""
    assert planned.record.instance is not None, "what may run was seen"
    return _Step(
        planned=planned,
        decision=planned.decide(
            ContainerEvent.REPLACED if restart else ContainerEvent.STOPPED,
            message,
            is_restart=is_restart and restart,
        ),
        stop=StopContainer(container=planned.record.instance, message=message),
        start=restart,
    )


def _probe_grace_seconds(container: Container, name: str) -> int | None:
    """The grace of a container whose probe has failed, if the probe has one (KEP-2238)."""
    probe = container.startup_probe if name == "startup" else container.liveness_probe
    return probe.termination_grace_period_seconds if probe is not None else None


def _is_changed(planned: _Planned) -> bool:
    """Whether the instance was made of another definition."""
    instance = planned.record.instance
    return (
        instance is not None
        and bool(instance.hash)
        and (instance.hash != container_hash(planned.container))
    )


@frozen(kw_only=True)
class _InitPlan:
    """What becomes of the init containers. `finished`: regular containers may run."""

    finished: bool = False
    failed: bool = False
    steps: tuple[_Step, ...] = ()


def _plan_init(pod: Pod, observed: ObservedPod, given: PlanContext, sandbox_id: str) -> _InitPlan:
    """Walk the init containers in their order, up to the first that is not through.

    Only what was made in the present sandbox counts. Those before the furthest that was ever made
    in it were through: their containers may have been removed since. The sidecars among them are
    kept running, and hold nothing up any more.
    """
    everything = [_planned_container(pod, c, init_role(c), given) for c in pod.spec.init_containers]
    regular = [
        _planned_container(pod, c, ContainerRole.REGULAR, given) for c in pod.spec.containers
    ]
    listed = {c.name for c in observed.containers if c.sandbox_id == sandbox_id}

    def was_made(planned: _Planned) -> bool:
        return planned.name in listed or planned.is_in(sandbox_id)

    made = [index for index, planned in enumerate(everything) if was_made(planned)]
    furthest = len(everything) if any(map(was_made, regular)) else max(made, default=0)
    steps: list[_Step] = []
    for index, planned in enumerate(everything):
        was_through = index < furthest
        if was_through and not is_sidecar(planned.container):
            continue
        step = _init_step(planned, given, sandbox_id)
        steps.append(step)
        if was_through or step.passed:
            continue
        return _InitPlan(failed=step.failed, steps=tuple(steps))
    return _InitPlan(finished=True, steps=tuple(steps))


def _init_step(planned: _Planned, given: PlanContext, sandbox_id: str) -> _Step:
    """What becomes of an init container whose turn it is; it runs once in each sandbox."""
    if planned.record.state is ContainerStage.EXITED and not planned.is_in(sandbox_id):
        return _Step(planned=planned, start=True, decision=_start_over(planned, whatever=True))
    return _step(planned, given)


def _starts(
    pod: Pod, wanted: Iterable[_Planned], observed: ObservedPod, given: PlanContext
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


def _backoff_seconds(planned: _Planned, observed: ObservedPod, given: PlanContext) -> float:
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
    planned: _Planned, last: ObservedContainer, observed: ObservedPod, given: PlanContext
) -> bool:
    """Whether an instance that was stopped for its probe ended within the back-off of another.

    One that ran for longer than that is restarted at once, as by the Go kubelet. Of ends that
    nobody knows any more, each may have been too soon.
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


def _postponed(pod: Pod, planned: _Planned, given: PlanContext, wait_seconds: float) -> Postponed:
    assert planned.record.backoff is not None, "who waits has a back-off"
    delay = Duration.from_seconds(planned.record.backoff.delay_seconds)
    return Postponed(
        container=planned.container,
        until_ns=given.now_ns + math.ceil(wait_seconds * 1e9),
        message=(
            f"back-off {delay} restarting failed container={planned.name} pod={pod_full_name(pod)}"
        ),
    )
