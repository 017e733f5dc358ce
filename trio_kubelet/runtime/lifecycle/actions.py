"""What must be done to bring a pod's containers from where they stand to what is wanted.

`plan_pod` is a pure function and gives a `PodActions`; `pod_runtime.py` carries it out. What is to
be done with a container follows from its state in the table (`container_table.py`), which what was
observed has stepped before; what is decided is an event that the table must allow. Here is what is
a matter of order: the sandbox, what must be stopped, ephemeral containers, init containers
(restartable ones included), regular containers, as in the Go kubelet. A plan starts nothing in a
sandbox that it is about to replace, and stops nothing that it could leave alone.
"""

from collections.abc import Iterable

from attrs import evolve, frozen

from state_machines.container import (
    LIVING,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    RestartPolicy,
    restarts_after,
)
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.restarts import init_role
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.lifecycle.container_table import Decision
from trio_kubelet.runtime.lifecycle.plan import (
    PlanContext,
    PlannedContainer,
    PodActions,
    StopContainer,
    due_starts,
    planned_container,
    planned_containers,
)
from trio_kubelet.runtime.lifecycle.restart_of_all import causes_of_restart, plan_restart_of_all
from trio_kubelet.runtime.observed import ObservedPod

STOPPED_EXIT_CODE = 137
"""What a container that the agent stops is taken to exit with."""


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
class _Step:
    """What becomes of one container.

    `start`: an instance is wanted as soon as none may run. `passed`: an init container no longer
    holds up the next one. `failed`: it ended for good, and the pod with it.
    """

    planned: PlannedContainer
    decision: Decision | None = None
    stop: StopContainer | None = None
    start: bool = False
    passed: bool = False
    failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or will."""
        has_ended = self.planned.record.state is ContainerStage.EXITED
        return not self.start and (self.decision is not None or has_ended)


def _plan_with_new_sandbox(
    pod: Pod, observed: ObservedPod, given: PlanContext, attempt: int
) -> PodActions:
    """Everything goes with the old sandbox; what is not finished starts over in a new one."""
    everything = planned_containers(pod, given)
    stop_only = PodActions(decisions=_stop_all(everything), stop_pod=bool(observed.sandboxes))
    never = pod.spec.restart_policy == RestartPolicy.NEVER and not _restarts_by_own_rule(pod)
    if attempt > 0 and observed.containers and never:
        return stop_only
    regular = [s for s in everything if s.role is ContainerRole.REGULAR and _starts_over(s)]
    if not regular:
        return stop_only
    first = [s for s in everything if s.role in (ContainerRole.INIT, ContainerRole.SIDECAR)][:1]
    starts, postponed = due_starts(pod, first or regular, observed, given)
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


def _starts_over(planned: PlannedContainer) -> bool:
    """Whether a regular container is to run again after its sandbox went."""
    if planned.record.state is ContainerStage.EXITED:
        return planned.allows(ContainerEvent.RESTARTED)
    return planned.record.state is not ContainerStage.STOPPING


def _stop_all(everything: Iterable[PlannedContainer]) -> tuple[Decision, ...]:
    """The decisions to stop all that may run, without successors."""
    return tuple(
        planned.decide(ContainerEvent.STOPPED)
        for planned in everything
        if planned.record.state in LIVING
    )


def _replace(planned: PlannedContainer, *, is_first: bool) -> Decision | None:
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
        return _start_over(planned, regardless=is_first)
    return None


def _start_over(planned: PlannedContainer, *, regardless: bool = False) -> Decision | None:
    """Another instance after one that ended, if its policy asks for it, or `regardless` of it."""
    if planned.allows(ContainerEvent.RESTARTED):
        cause = f"exit code {planned.evidence.exit_code}"
        return planned.decide(ContainerEvent.RESTARTED, cause, is_restart=True)
    return (
        planned.decide(ContainerEvent.REPLACED, "its sandbox was replaced") if regardless else None
    )


def _plan_in_sandbox(
    pod: Pod, observed: ObservedPod, given: PlanContext, sandbox_id: str
) -> PodActions:
    """The sandbox stays: containers are started, replaced or left alone one by one."""
    everything = planned_containers(pod, given)
    if causes := causes_of_restart(pod, everything, sandbox_id):
        return plan_restart_of_all(pod, observed, given, everything, causes, sandbox_id)
    init = _plan_init(pod, observed, given, sandbox_id)
    if init.failed:
        return PodActions(decisions=_stop_all(everything), stop_pod=True, sandbox_id=sandbox_id)
    regular = [
        _step(planned_container(pod, c, ContainerRole.REGULAR, given), given)
        for c in (pod.spec.containers if init.finished else ())
    ]
    if init.finished and all(step.is_over for step in regular):
        return PodActions(decisions=_stop_all(everything), stop_pod=True, sandbox_id=sandbox_id)
    ephemeral = [
        _step(planned_container(pod, c, ContainerRole.EPHEMERAL, given), given)
        for c in pod.spec.ephemeral_containers
    ]
    steps = (*ephemeral, *init.steps, *regular)
    ready = [step.planned for step in steps if step.start and step.stop is None]
    starts, postponed = due_starts(pod, ready, observed, given)
    return PodActions(
        decisions=tuple(step.decision for step in steps if step.decision),
        sandbox_id=sandbox_id,
        stop=tuple(step.stop for step in steps if step.stop),
        start=starts,
        postponed=postponed,
    )


def _step(planned: PlannedContainer, given: PlanContext) -> _Step:
    """What becomes of a container whose turn it is, by its state."""
    match planned.record.state:
        case ContainerStage.WAITING:
            return _Step(planned=planned, start=True)
        case ContainerStage.CREATED:
            anew = planned.decide(ContainerEvent.REPLACED)
            return _Step(planned=planned, start=True, decision=anew)
        case ContainerStage.RUNNING:
            return _when_running(planned, given)
        case ContainerStage.STOPPING | ContainerStage.REPLACING:
            return _when_stopping(planned, given)
        case ContainerStage.EXITED:
            return _after_exit(planned)
        case ContainerStage.UNKNOWN:
            return _when_unknown(planned)
        case ContainerStage.REMOVED:
            return _Step(planned=planned)


def _after_exit(planned: PlannedContainer) -> _Step:
    if planned.role is ContainerRole.INIT and planned.evidence.exit_code == 0:
        return _Step(planned=planned, passed=True)
    decision = _start_over(planned)
    return _Step(
        planned=planned, decision=decision, start=decision is not None, failed=decision is None
    )


def _when_unknown(planned: PlannedContainer) -> _Step:
    """It is stopped to be sure; an ephemeral one is left alone."""
    if planned.role is ContainerRole.EPHEMERAL:
        return _Step(planned=planned)
    message = "Container is in unknown state, try killing it before restart"
    return _stopped(planned, message, restart=planned.allows(ContainerEvent.REPLACED))


def _when_stopping(planned: PlannedContainer, given: PlanContext) -> _Step:
    """The stop is made again: it failed, or was cut short. It is for what it was for before."""
    is_changed, record = _is_changed(planned), planned.record
    restart = record.state is ContainerStage.REPLACING or is_changed
    if not is_changed and (probe := given.failed_probes.get(planned.instance_id)):
        return _stopped_for(probe, planned, restart=restart)
    message = f"Stopping container {planned.name}"
    return _stopped(planned, message, restart=restart, is_restart=record.is_restart)


def _when_running(planned: PlannedContainer, given: PlanContext) -> _Step:
    if planned.role is ContainerRole.INIT or planned.role is ContainerRole.EPHEMERAL:
        # It runs to its end, whatever changes meanwhile.
        return _Step(planned=planned)
    if _is_changed(planned):
        message = f"Container {planned.name} definition changed, will be restarted"
        return _stopped(planned, message, restart=True)
    if probe := given.failed_probes.get(planned.instance_id):
        restart = restarts_after(planned.evidence.terms, STOPPED_EXIT_CODE)
        return _stopped_for(probe, planned, restart=restart)
    started = planned.role is ContainerRole.SIDECAR and planned.instance_id not in given.unstarted
    return _Step(planned=planned, passed=started)


def _stopped_for(probe: str, planned: PlannedContainer, *, restart: bool) -> _Step:
    """A container that goes because this probe of it has failed."""
    message = f"Container {planned.name} failed {probe} probe"
    message += ", will be restarted" if restart else ""
    step = _stopped(planned, message, restart=restart, is_restart=True)
    assert step.stop is not None, "what failed a probe is stopped"
    grace_seconds = _probe_grace_seconds(planned.container, probe)
    return evolve(step, stop=evolve(step.stop, grace_seconds=grace_seconds))


def _stopped(
    planned: PlannedContainer, message: str, *, restart: bool, is_restart: bool = False
) -> _Step:
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


def _is_changed(planned: PlannedContainer) -> bool:
    """Whether the instance was made of another definition."""
    made_of = planned.record.instance.hash if planned.record.instance is not None else ""
    return bool(made_of) and made_of != container_hash(planned.container)


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
    everything = [planned_container(pod, c, init_role(c), given) for c in pod.spec.init_containers]
    regular = [planned_container(pod, c, ContainerRole.REGULAR, given) for c in pod.spec.containers]
    listed = {c.name for c in observed.containers if c.sandbox_id == sandbox_id}

    def was_made(planned: PlannedContainer) -> bool:
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


def _init_step(planned: PlannedContainer, given: PlanContext, sandbox_id: str) -> _Step:
    """What becomes of an init container whose turn it is; it runs once in each sandbox."""
    if planned.record.state is ContainerStage.EXITED and not planned.is_in(sandbox_id):
        return _Step(planned=planned, start=True, decision=_start_over(planned, regardless=True))
    return _step(planned, given)
