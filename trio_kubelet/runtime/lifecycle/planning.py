"""The steps that bring a pod's containers from where they stand to what is wanted.

`plan_pod` is a pure function and gives a `Plan`, which `pod_runtime.py` carries out. What is to be
done with a container follows from its state in the table (`container_table.py`), which what was
observed has stepped before; what is decided is an event that the table must allow. Here is what is
a matter of order: the sandbox, what must be stopped, ephemeral containers, init containers
(restartable ones included), regular containers, as in the Go kubelet. A plan starts nothing in a
sandbox that it is about to replace, and stops nothing that it could leave alone. The values are in
`plan.py`.
"""

import math
from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from state_machines.backoff import remaining_seconds
from state_machines.container import (
    LIVING,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    RestartEvidence,
    RestartPolicy,
    restarts_after,
)
from trio_kubelet.k8s import Container, Duration, Pod
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.lifecycle.container_table import UNTOUCHED, Decision
from trio_kubelet.runtime.lifecycle.plan import (
    NewSandbox,
    Plan,
    PlanContext,
    PlannedContainer,
    Planning,
    Postponed,
    StartContainer,
    StopContainer,
)
from trio_kubelet.runtime.observed import (
    Absent,
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
    Unusable,
)
from trio_kubelet.runtime.restarts import (
    all_containers,
    exits_that_restart_all,
    may_restart_all,
    restart_terms,
)

STOPPED_EXIT_CODE = 137
"""The exit code that a container which the agent stops is taken to end with: SIGKILL's."""


# The plan of a pod


def plan_pod(pod: Pod, observed: ObservedPod, context: PlanContext) -> Plan:
    """Plan the next steps for a pod that should run."""
    containers = tuple(_planned(pod, *each, context) for each in all_containers(pod))
    planning = Planning(pod=pod, observed=observed, context=context, containers=containers)
    match observed.usable_sandbox(host_network=bool(pod.spec.host_network)):
        case Absent():
            return _plan_with_new_sandbox(planning, NewSandbox())
        case Unusable(why):
            new = NewSandbox(attempt=observed.sandboxes[0].attempt + 1, replaces=why)
            return _plan_with_new_sandbox(planning, new)
        case ObservedSandbox() as sandbox:
            return _plan_in_sandbox(planning, sandbox)


def _planned(
    pod: Pod, container: Container, role: ContainerRole, context: PlanContext
) -> PlannedContainer:
    record = context.containers.get(container.name, UNTOUCHED)
    exit_code = record.instance.exit_code if record.instance is not None else 0
    evidence = RestartEvidence(terms=restart_terms(pod, container, role), exit_code=exit_code)
    return PlannedContainer(
        container=container,
        role=role,
        record=record,
        evidence=evidence,
        hash=context.hashes[container.name],
    )


def _plan_with_new_sandbox(planning: Planning, new: NewSandbox) -> Plan:
    """Everything goes with the old sandbox; what is not finished starts over in a new one."""
    everything = planning.containers
    replaces = bool(new.replaces)
    stop_only = Plan(decisions=_stop_all(everything), stop_pod=replaces)
    if replaces and planning.observed.containers and _never_restarts(planning.pod):
        return stop_only
    regular = [s for s in planning.of_role(ContainerRole.REGULAR) if _starts_over(s)]
    if not regular:
        return stop_only
    first = planning.of_role(ContainerRole.INIT, ContainerRole.SIDECAR)[:1]
    starts, postponed = _due_starts(planning, first or regular)
    resize = planning.context.resize
    return Plan(
        decisions=tuple(filter(None, (_replace(s, is_first=s in first) for s in everything))),
        stop_pod=replaces,
        sandbox=new,
        resize=resize.when_all_stopped if resize is not None else None,
        start=starts,
        postponed=postponed,
    )


def _never_restarts(pod: Pod) -> bool:
    """Neither the pod nor a container of it has a policy by which anything runs again."""
    own_rules = any(c.restart_policy or c.restart_policy_rules for c in pod.spec.containers)
    return pod.spec.restart_policy == RestartPolicy.NEVER and not own_rules


def _starts_over(planned: PlannedContainer) -> bool:
    """True if a regular container is to run again after its sandbox went."""
    if planned.record.state is ContainerStage.EXITED:
        return planned.allows(ContainerEvent.RESTARTED)
    return planned.record.state is not ContainerStage.STOPPING and not _ends_by_policy(planned)


def _ends_by_policy(planned: PlannedContainer) -> bool:
    """True if it runs, and once it has ended only a rule of its own may bring it back."""
    terms = planned.evidence.terms
    return (
        planned.record.state is ContainerStage.RUNNING
        and planned.role is ContainerRole.REGULAR
        and (terms.container_policy or terms.pod_policy) == RestartPolicy.NEVER
    )


def _stop_all(everything: Iterable[PlannedContainer]) -> tuple[Decision, ...]:
    """Decide to stop all that may run, without successors."""
    return tuple(
        planned.decide(ContainerEvent.STOPPED)
        for planned in everything
        if planned.record.state in LIVING
    )


def _replace(planned: PlannedContainer, *, is_first: bool) -> Decision | None:
    """Decide about a container whose sandbox is replaced."""
    state = planned.record.state
    if state is ContainerStage.CREATED:
        return planned.decide(ContainerEvent.REPLACED)
    if state in LIVING:
        anew = planned.role is not ContainerRole.EPHEMERAL and state is not ContainerStage.STOPPING
        if anew and not _ends_by_policy(planned) and planned.allows(ContainerEvent.REPLACED):
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


def _plan_in_sandbox(planning: Planning, sandbox: ObservedSandbox) -> Plan:
    """The sandbox stays: containers are started, replaced or left alone one by one."""
    if causes := _causes_of_restart(planning, sandbox):
        return _plan_restart_of_all(planning, causes, sandbox)
    given_up = Plan(decisions=_stop_all(planning.containers), stop_pod=True)
    init, may_run_regular = _plan_init(planning, sandbox)
    if any(step.failed for step in init[-1:]):
        return given_up
    regular = []
    if may_run_regular:
        regular = [_step(each, planning) for each in planning.of_role(ContainerRole.REGULAR)]
        if all(step.is_over for step in regular):
            return given_up
    ephemeral = [_step(each, planning) for each in planning.of_role(ContainerRole.EPHEMERAL)]
    steps = (*ephemeral, *init, *regular)
    ready = [step.planned for step in steps if step.start and step.stop is None]
    starts, postponed = _due_starts(planning, ready)
    return Plan(
        decisions=tuple(step.decision for step in steps if step.decision),
        stop=tuple(step.stop for step in steps if step.stop),
        sandbox=sandbox,
        resize=planning.context.resize,
        start=starts,
        postponed=postponed,
    )


def _plan_init(planning: Planning, sandbox: ObservedSandbox) -> tuple[list["_Step"], bool]:
    """Walk the init containers in their order, up to the first that is not through.

    Returns what becomes of them, and True if regular containers may run. Only what was made in the
    present sandbox counts. Those before the furthest that was ever made in it were through: their
    containers may have been removed since. The sidecars among them are kept running, and hold
    nothing up any more.
    """
    initial = planning.of_role(ContainerRole.INIT, ContainerRole.SIDECAR)
    listed = {c.name for c in planning.observed.containers if c.sandbox_id == sandbox.id}

    def was_made(planned: PlannedContainer) -> bool:
        return planned.name in listed or planned.is_in(sandbox.id)

    furthest = max((index for index, each in enumerate(initial) if was_made(each)), default=0)
    if any(map(was_made, planning.of_role(ContainerRole.REGULAR))):
        furthest = len(initial)
    steps: list[_Step] = []
    for index, planned in enumerate(initial):
        was_through = index < furthest
        if was_through and planned.role is not ContainerRole.SIDECAR:
            continue
        if planned.record.state is ContainerStage.EXITED and not planned.is_in(sandbox.id):
            # Whatever it came to in a former sandbox, it runs once in each.
            anew = _start_over(planned, regardless=True)
            steps.append(_Step(planned=planned, start=True, decision=anew))
        else:
            steps.append(_step(planned, planning))
        if not was_through and not steps[-1].passed:
            return steps, False
    return steps, True


# What follows from the state of one container


@frozen(kw_only=True)
class _Step:
    """The next step of one container."""

    planned: PlannedContainer
    decision: Decision | None = None
    stop: StopContainer | None = None
    start: bool = False
    """An instance is wanted as soon as none may run."""
    passed: bool = False
    """An init container no longer holds up the next one."""
    failed: bool = False
    """It ended for good; if it is an init container, the pod with it."""

    @property
    def is_over(self) -> bool:
        """True if nothing of it runs or will."""
        has_ended = self.planned.record.state is ContainerStage.EXITED
        return not self.start and (self.decision is not None or self.failed or has_ended)


def _step(planned: PlannedContainer, planning: Planning) -> _Step:
    """Say by its state what becomes of a container whose turn it is."""
    context = planning.context
    match planned.record.state:
        case ContainerStage.WAITING:
            return _Step(planned=planned, start=True)
        case ContainerStage.CREATED:
            anew = planned.decide(ContainerEvent.REPLACED)
            return _Step(planned=planned, start=True, decision=anew)
        case ContainerStage.RUNNING:
            return _when_running(planned, context)
        case ContainerStage.STOPPING | ContainerStage.REPLACING:
            return _when_stopping(planned, context)
        case ContainerStage.EXITED:
            return _after_exit(planned)
        case ContainerStage.UNKNOWN:
            return _when_unknown(planned, planning.observed)
        case ContainerStage.REMOVED:
            return _Step(planned=planned)


def _when_running(planned: PlannedContainer, context: PlanContext) -> _Step:
    resize = context.resize
    if resize is not None and planned.name in resize.restart:
        message = f"Container {planned.name} resize requires restart"
        return _stopped(planned, message, restart=True)
    if planned.role is ContainerRole.INIT or planned.role is ContainerRole.EPHEMERAL:
        # It runs to its end, whatever else changes meanwhile.
        return _Step(planned=planned)
    if planned.is_changed:
        message = f"Container {planned.name} definition changed, will be restarted"
        return _stopped(planned, message, restart=True)
    if probe := context.failed_probes.get(planned.instance_id):
        restart = restarts_after(planned.evidence.terms, STOPPED_EXIT_CODE)
        return _stopped_for(probe, planned, restart=restart)
    started = planned.role is ContainerRole.SIDECAR and planned.instance_id not in context.unstarted
    return _Step(planned=planned, passed=started)


def _when_stopping(planned: PlannedContainer, context: PlanContext) -> _Step:
    """The stop is made again: it failed, or was cut short. It is for what it was for before."""
    record = planned.record
    restart = record.state is ContainerStage.REPLACING or planned.is_changed
    if not planned.is_changed and (probe := context.failed_probes.get(planned.instance_id)):
        return _stopped_for(probe, planned, restart=restart)
    message = f"Stopping container {planned.name}"
    return _stopped(planned, message, restart=restart, is_restart=record.is_restart)


def _after_exit(planned: PlannedContainer) -> _Step:
    if planned.role is ContainerRole.INIT and planned.evidence.exit_code == 0:
        return _Step(planned=planned, passed=True)
    decision = _start_over(planned)
    return _Step(
        planned=planned, decision=decision, start=decision is not None, failed=decision is None
    )


def _when_unknown(planned: PlannedContainer, observed: ObservedPod) -> _Step:
    """It is stopped to be sure; an ephemeral one is left alone."""
    if planned.role is ContainerRole.EPHEMERAL:
        return _Step(planned=planned)
    restart = planned.allows(ContainerEvent.REPLACED)
    is_there = any(each.id == planned.instance_id for each in observed.containers)
    if not restart and not is_there:
        return _Step(planned=planned, failed=True)
    message = "Container is in unknown state, try killing it before restart"
    return _stopped(planned, message, restart=restart)


def _stopped_for(probe: str, planned: PlannedContainer, *, restart: bool) -> _Step:
    """Stop a container because this probe of it has failed, with the probe's grace (KEP-2238)."""
    message = f"Container {planned.name} failed {probe} probe"
    message += ", will be restarted" if restart else ""
    step = _stopped(planned, message, restart=restart, is_restart=True)
    assert step.stop is not None, "what failed a probe is stopped"
    container = planned.container
    failed = container.startup_probe if probe == "startup" else container.liveness_probe
    grace_seconds = failed.termination_grace_period_seconds if failed is not None else None
    return evolve(step, stop=evolve(step.stop, grace_seconds=grace_seconds))


def _stopped(
    planned: PlannedContainer, message: str, *, restart: bool, is_restart: bool = False
) -> _Step:
    """Stop a container; with `restart` another instance takes its place."""
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


# Restart of all containers (KEP-5532)
#
# The sandbox, its address and the volumes stay. All that runs is stopped, with the least grace and
# without hooks, and what has ended is removed from the runtime: an agent that is started meanwhile
# finds what is left to do, and does not take the end of a removed container for a new one. The
# container whose exit was the cause goes last, so that the cause stays known until all others are
# gone. Then the pod starts as a new one does. Only the cause waits for its back-off.


def _causes_of_restart(
    planning: Planning, sandbox: ObservedSandbox
) -> tuple[PlannedContainer, ...]:
    """Find the containers whose exit restarts all, and of which that was not decided yet."""
    if not may_restart_all(planning.pod):
        return ()
    exited = [s for s in planning.containers if s.record.state is ContainerStage.EXITED]
    ended = {each.name: each.record.instance for each in exited if each.record.instance}
    names = exits_that_restart_all(planning.pod, ended, sandbox.id)
    return tuple(each for each in exited if each.name in names)


def _plan_restart_of_all(
    planning: Planning, causes: Sequence[PlannedContainer], sandbox: ObservedSandbox
) -> Plan:
    """The next step: stop what runs, then remove what was made, then start from the beginning."""
    observed = planning.observed
    living = {each.id for each in observed.living}
    if stopped := [each for each in planning.containers if _runs(each, living)]:
        cause = f"exit code {causes[0].evidence.exit_code} of {causes[0].name} restarts all"
        return Plan(
            decisions=tuple(_stop_for_restart(each, cause) for each in stopped),
            stop=tuple(_stop_at_once(each) for each in stopped),
            sandbox=sandbox,
        )
    ours = [each for each in planning.containers if each.role is not ContainerRole.EPHEMERAL]
    names, last = {each.name for each in ours}, {each.instance_id for each in causes}
    if made := [each for each in observed.containers if each.name in names]:
        removed = [each for each in made if each.id not in last] or made
        return Plan(remove=tuple(removed), sandbox=sandbox)
    initial = planning.of_role(ContainerRole.INIT, ContainerRole.SIDECAR)
    starts, postponed = _due_starts(planning, initial[:1] or ours)
    return Plan(
        decisions=tuple(_restart_each(ours, causes[0].name)),
        sandbox=sandbox,
        starts_over=True,
        start=starts,
        postponed=postponed,
    )


def _runs(planned: PlannedContainer, living: set[str]) -> bool:
    """True if it is to be stopped; nobody knows how an ephemeral one is that was lost."""
    state, id_ = planned.record.state, planned.instance_id
    if planned.role is ContainerRole.EPHEMERAL and state is ContainerStage.UNKNOWN:
        return False
    return state in LIVING and id_ in living


def _stop_for_restart(planned: PlannedContainer, cause: str) -> Decision:
    anew = planned.role is not ContainerRole.EPHEMERAL and planned.allows(ContainerEvent.REPLACED)
    return planned.decide(ContainerEvent.REPLACED if anew else ContainerEvent.STOPPED, cause)


def _stop_at_once(planned: PlannedContainer) -> StopContainer:
    assert planned.record.instance is not None, "what runs was seen"
    message = f"Stopping container {planned.name}"
    return StopContainer(container=planned.record.instance, message=message, at_once=True)


def _restart_each(ours: Iterable[PlannedContainer], cause: str) -> Iterable[Decision]:
    """Another instance of each, by its policy where that asks for one, too."""
    for each in ours:
        if each.allows(ContainerEvent.RESTARTED):
            why = f"exit code {each.evidence.exit_code}"
            yield each.decide(ContainerEvent.RESTARTED, why, is_restart=True)
        elif each.allows(ContainerEvent.REPLACED):
            yield each.decide(ContainerEvent.REPLACED, f"the exit of {cause} restarts all")


# Back-off: only a container that is restarted waits, after an end of its own, or after it was
# stopped for a failed probe too soon after the end before.


def _due_starts(
    planning: Planning, wanted: Iterable[PlannedContainer]
) -> tuple[tuple[StartContainer, ...], tuple[Postponed, ...]]:
    """Part the containers that start now from those that have to wait for their back-off."""
    starts: list[StartContainer] = []
    postponed: list[Postponed] = []
    for planned in wanted:
        wait_seconds = _backoff_seconds(planned, planning)
        if wait_seconds > 0:
            postponed.append(_postpone(planned, planning, wait_seconds))
            continue
        last = planning.observed.container(planned.name) or planned.record.instance
        starts.append(
            StartContainer(container=planned.container, role=planned.role, predecessor=last)
        )
    return tuple(starts), tuple(postponed)


def _backoff_seconds(planned: PlannedContainer, planning: Planning) -> float:
    last, waits = planned.record.instance, planned.record.is_restart
    if planned.record.state is ContainerStage.EXITED:
        waits = planned.allows(ContainerEvent.RESTARTED)
    elif waits and last is not None and planned.record.was_stopped:
        waits = _failed_probes_too_often(planned, last, planning)
    if last is None or not waits or last.state is not ObservedState.EXITED:
        return 0.0
    return remaining_seconds(
        planned.record.backoff,
        planning.context.backoff_policy,
        failed_at_ns=last.finished_at,
        now_ns=planning.context.now_ns,
    )


def _failed_probes_too_often(
    planned: PlannedContainer, last: ObservedContainer, planning: Planning
) -> bool:
    """True if an instance that was stopped for its probe ended within the back-off of another.

    One that ran for longer than that is restarted at once, as by the Go kubelet. If the runtime
    has no record of the end before, this one counts as too soon.
    """
    others = (c for c in planning.observed.instances(planned.name) if c.id != last.id)
    before = next((c for c in others if c.state is ObservedState.EXITED), None)
    if before is None:
        return True
    remaining = remaining_seconds(
        planned.record.backoff,
        planning.context.backoff_policy,
        failed_at_ns=before.finished_at,
        now_ns=last.finished_at,
    )
    return remaining > 0


def _postpone(planned: PlannedContainer, planning: Planning, wait_seconds: float) -> Postponed:
    assert planned.record.backoff is not None, "a container that waits has a back-off"
    delay = Duration.from_seconds(planned.record.backoff.delay_seconds)
    full_name = pod_full_name(planning.pod)
    return Postponed(
        container=planned.container,
        until_ns=planning.context.now_ns + math.ceil(wait_seconds * 1e9),
        message=f"back-off {delay} restarting failed container={planned.name} pod={full_name}",
    )
