"""What must be done to bring a pod's containers from what was observed to what is wanted.

`plan_pod` is a pure function and gives a `PodActions`; `pod_runtime.py` carries it out. The
steps and their order are those of the Go kubelet: the sandbox, what must be stopped, ephemeral
containers, init containers (restartable ones included), regular containers. A plan starts
nothing in a sandbox that it is about to replace, and stops nothing that it could leave alone.
What may not be restarted yet is named with the time at which it may.
"""

import math
from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from state_machines.backoff import Backoff, BackoffPolicy, remaining_seconds
from state_machines.container import (
    ContainerRole,
    ContainerStage,
    RestartPolicy,
    restarts_after,
    should_restart,
)
from trio_kubelet.k8s import Container, Duration, Pod
from trio_kubelet.restarts import init_role, is_sidecar, restart_terms
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState


@frozen(kw_only=True)
class StopContainer:
    """Stop a running container. `message` is what the event `Killing` says."""

    container: ObservedContainer
    message: str


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

    `stop_pod`: stop everything that runs, then the sandboxes. `create_sandbox`: make a new one
    with `attempt`; otherwise containers go into `sandbox_id`. `sandbox_changed`: there was one
    before, so users are told.
    """

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
        """Whether there is nothing to do now."""
        return not (self.stop_pod or self.stop or self.create_sandbox or self.start)


@frozen(kw_only=True)
class PlanContext:
    """What a plan needs to know beside the pod and its observation.

    `now_ns` is nanoseconds since the epoch. `backoffs` are the crash back-offs by container
    name. `failed_probes` names, for ids of containers that must be restarted, the probe that
    failed (`liveness`, `startup`). `unstarted` are the ids of running containers whose startup
    probe has not succeeded yet.
    """

    now_ns: int
    backoff_policy: BackoffPolicy = field(factory=BackoffPolicy)
    backoffs: Mapping[str, Backoff] = field(factory=dict)
    failed_probes: Mapping[str, str] = field(factory=dict)
    unstarted: frozenset[str] = frozenset()


def plan_pod(pod: Pod, observed: ObservedPod, given: PlanContext) -> PodActions:
    """The next steps for a pod that should run."""
    attempt, reusable = _sandbox(pod, observed)
    if reusable is None:
        return _plan_with_new_sandbox(pod, observed, given, attempt)
    return _plan_in_sandbox(pod, observed, given, reusable)


def container_stage(last: ObservedContainer | None) -> ContainerStage:
    """Where a container stands in its machine, as far as the runtime shows it."""
    return STAGES[last.state] if last is not None else ContainerStage.WAITING


STAGES = {
    ObservedState.CREATED: ContainerStage.CREATED,
    ObservedState.RUNNING: ContainerStage.RUNNING,
    ObservedState.EXITED: ContainerStage.EXITED,
    ObservedState.UNKNOWN: ContainerStage.UNKNOWN,
}


def _may_restart(
    pod: Pod, container: Container, role: ContainerRole, last: ObservedContainer | None
) -> bool:
    """Whether a container that does not run, or is about to be stopped, is to run again."""
    terms, state = restart_terms(pod, container, role), container_stage(last)
    if last is not None and state is ContainerStage.RUNNING:
        return restarts_after(terms, exit_code=STOPPED_EXIT_CODE)
    return should_restart(state, terms, last.exit_code if last else 0)


STOPPED_EXIT_CODE = 137
"""What a container that the agent stops is taken to exit with."""


def _sandbox(pod: Pod, observed: ObservedPod) -> tuple[int, str | None]:
    """The attempt of the next sandbox, and the id of the present one if it can be used."""
    if not observed.sandboxes:
        return 0, None
    usable = observed.usable_sandbox(host_network=bool(pod.spec.host_network))
    return observed.sandboxes[0].attempt + 1, usable.id if usable is not None else None


def _plan_with_new_sandbox(
    pod: Pod, observed: ObservedPod, given: PlanContext, attempt: int
) -> PodActions:
    """Everything goes with the old sandbox; what is not finished starts over in a new one."""
    if (
        attempt > 0
        and observed.containers
        and pod.spec.restart_policy == RestartPolicy.NEVER
        and not _restarts_by_own_rule(pod)
    ):
        return PodActions(stop_pod=True)
    first: tuple[tuple[Container, ContainerRole], ...]
    regular = tuple(c for c in pod.spec.containers if _starts_over(pod, c, observed))
    if not regular:
        return PodActions(stop_pod=bool(observed.sandboxes))
    if pod.spec.init_containers:
        initial = pod.spec.init_containers[0]
        first = ((initial, init_role(initial)),)
    else:
        first = tuple((c, ContainerRole.REGULAR) for c in regular)
    starts, postponed = _starts(pod, first, observed, given)
    return PodActions(
        stop_pod=bool(observed.sandboxes),
        create_sandbox=True,
        sandbox_changed=bool(observed.sandboxes),
        attempt=attempt,
        start=starts,
        postponed=postponed,
    )


def _restarts_by_own_rule(pod: Pod) -> bool:
    return any(c.restart_policy or c.restart_policy_rules for c in pod.spec.containers)


def _starts_over(pod: Pod, container: Container, observed: ObservedPod) -> bool:
    """Whether a regular container is to run again after its sandbox went."""
    last = observed.container(container.name)
    if last is None or last.state is not ObservedState.EXITED:
        return True
    return _may_restart(pod, container, ContainerRole.REGULAR, last)


def _plan_in_sandbox(
    pod: Pod, observed: ObservedPod, given: PlanContext, sandbox_id: str
) -> PodActions:
    """The sandbox stays: containers are started, replaced or left alone one by one."""
    here = {c.name: c for c in reversed(observed.containers) if c.sandbox_id == sandbox_id}
    init = _plan_init(pod, here, given)
    if init.failed:
        return PodActions(stop_pod=True, sandbox_id=sandbox_id)
    regular = [
        (container, _regular_step(pod, container, observed.container(container.name), given))
        for container in (pod.spec.containers if init.finished else ())
    ]
    if init.finished and not any(step.start or step.runs for _, step in regular):
        return PodActions(stop_pod=True, sandbox_id=sandbox_id)
    ephemeral = tuple(
        (each, ContainerRole.EPHEMERAL)
        for each in pod.spec.ephemeral_containers
        if _may_restart(pod, each, ContainerRole.EPHEMERAL, observed.container(each.name))
    )
    wanted = (
        *ephemeral,
        *init.start,
        *((container, ContainerRole.REGULAR) for container, step in regular if step.start),
    )
    starts, postponed = _starts(pod, wanted, observed, given)
    return PodActions(
        sandbox_id=sandbox_id,
        stop=(*init.stop, *(step.stop for _, step in regular if step.stop)),
        start=starts,
        postponed=postponed,
    )


@frozen(kw_only=True)
class _Step:
    """What becomes of one container.

    `passed`: an init container no longer holds up the next one. `failed`: it ended for good,
    and the pod with it.
    """

    start: bool = False
    runs: bool = False
    passed: bool = False
    failed: bool = False
    stop: StopContainer | None = None


def _regular_step(
    pod: Pod, container: Container, last: ObservedContainer | None, given: PlanContext
) -> _Step:
    if last is None or last.state is ObservedState.CREATED:
        return _Step(start=True)
    if last.state is ObservedState.EXITED:
        return _Step(start=_may_restart(pod, container, ContainerRole.REGULAR, last))
    return _living_step(pod, container, ContainerRole.REGULAR, last, given)


def _init_step(
    pod: Pod, container: Container, last: ObservedContainer | None, given: PlanContext
) -> _Step:
    role = init_role(container)
    if last is None or last.state is ObservedState.CREATED:
        return _Step(start=True)
    if last.state is not ObservedState.EXITED:
        step = _living_step(pod, container, role, last, given)
        started = role is ContainerRole.SIDECAR and last.id not in given.unstarted
        return evolve(step, passed=step.runs and started)
    if role is ContainerRole.INIT and last.exit_code == 0:
        return _Step(passed=True)
    if _may_restart(pod, container, role, last):
        return _Step(start=True)
    return _Step(failed=True)


def _living_step(
    pod: Pod,
    container: Container,
    role: ContainerRole,
    last: ObservedContainer,
    given: PlanContext,
) -> _Step:
    """A container that runs, or of which the runtime does not know whether it does."""
    restart = _may_restart(pod, container, role, last)
    if last.state is ObservedState.UNKNOWN:
        message = "Container is in unknown state, try killing it before restart"
        return _Step(start=restart, stop=StopContainer(container=last, message=message))
    if role is ContainerRole.INIT:
        # It runs to its end, whatever changes meanwhile.
        return _Step(runs=True)
    if last.hash and last.hash != container_hash(container):
        message = f"Container {container.name} definition changed, will be restarted"
        return _Step(start=True, stop=StopContainer(container=last, message=message))
    if probe := given.failed_probes.get(last.id):
        message = f"Container {container.name} failed {probe} probe"
        message += ", will be restarted" if restart else ""
        return _Step(start=restart, stop=StopContainer(container=last, message=message))
    return _Step(runs=True)


@frozen(kw_only=True)
class _InitPlan:
    """What becomes of the init containers. `finished`: regular containers may run."""

    finished: bool = False
    failed: bool = False
    start: tuple[tuple[Container, ContainerRole], ...] = ()
    stop: tuple[StopContainer, ...] = ()


def _plan_init(pod: Pod, here: Mapping[str, ObservedContainer], given: PlanContext) -> _InitPlan:
    """Walk the init containers in their order, up to the first that is not through.

    `here` are the newest containers of the present sandbox by name. Those before the furthest
    that was ever made in it were through: their containers may have been removed since. The
    sidecars among them are kept running, and hold nothing up any more.
    """
    containers = pod.spec.init_containers
    made = [i for i, container in enumerate(containers) if container.name in here]
    if any(container.name in here for container in pod.spec.containers):
        made.append(len(containers))
    furthest = max(made, default=0)
    start: list[tuple[Container, ContainerRole]] = []
    stop: list[StopContainer] = []
    for index, container in enumerate(containers):
        was_through = index < furthest
        if was_through and not is_sidecar(container):
            continue
        step = _init_step(pod, container, here.get(container.name), given)
        start += [(container, init_role(container))] if step.start else []
        stop += [step.stop] if step.stop else []
        if was_through or step.passed:
            continue
        return _InitPlan(failed=step.failed, start=tuple(start), stop=tuple(stop))
    return _InitPlan(finished=True, start=tuple(start), stop=tuple(stop))


def _starts(
    pod: Pod,
    wanted: Iterable[tuple[Container, ContainerRole]],
    observed: ObservedPod,
    given: PlanContext,
) -> tuple[tuple[StartContainer, ...], tuple[Postponed, ...]]:
    """What starts now, and what has to wait for its back-off."""
    starts: list[StartContainer] = []
    postponed: list[Postponed] = []
    for container, role in wanted:
        last = observed.container(container.name)
        wait_seconds = _backoff_seconds(container, last, given)
        if wait_seconds > 0:
            postponed.append(_postponed(pod, container, given, wait_seconds))
        else:
            starts.append(StartContainer(container=container, role=role, predecessor=last))
    return tuple(starts), tuple(postponed)


def _backoff_seconds(
    container: Container, last: ObservedContainer | None, given: PlanContext
) -> float:
    """How long a container must still wait. Only one that has exited ever has to."""
    if last is None or last.state is not ObservedState.EXITED:
        return 0.0
    return remaining_seconds(
        given.backoffs.get(container.name),
        given.backoff_policy,
        failed_at_ns=last.finished_at,
        now_ns=given.now_ns,
    )


def _postponed(
    pod: Pod, container: Container, given: PlanContext, wait_seconds: float
) -> Postponed:
    delay = Duration.from_seconds(given.backoffs[container.name].delay_seconds)
    return Postponed(
        container=container,
        until_ns=given.now_ns + math.ceil(wait_seconds * 1e9),
        message=(
            f"back-off {delay} restarting failed container={container.name} "
            f"pod={pod_full_name(pod)}"
        ),
    )
