"""The statuses of a pod's containers: one for each container of the spec, in its order.

What the runtime shows wins; where it shows nothing (any more), the previous status does. A
container that is to run but cannot be made says why: the reason of the last failed action,
with its last end beside it. What ran and cannot be found is never called a success: its exit
code is 137 and its reason ContainerStatusUnknown. Restart counts never go back.
"""

from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from state_machines.container import UNKNOWN_EXIT_CODE, ContainerRole, restarts_after
from state_machines.probe import ProbeVerdict
from trio_kubelet.k8s import (
    ConditionStatus,
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodConditionType,
    ResourceRequirements,
    Time,
    VolumeMount,
)
from trio_kubelet.k8s.image_reference import shown_name
from trio_kubelet.runtime.config.mounts import path_in_container
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.observed import ObservedContainer, ObservedState
from trio_kubelet.runtime.restarts import init_role, is_restarting_all, restart_terms
from trio_kubelet.status.container_parts import (
    actual_resources,
    asks_for_recursive_read_only,
    container_user,
    mount_status,
)
from trio_kubelet.status.context import StatusContext

CONTAINER_STATUS_UNKNOWN = "ContainerStatusUnknown"
RESTARTING_ALL = "RestartingAllContainers"
REPLACED = Reason(reason="ContainerCreating")
LOST_MESSAGE = "The container could not be located when the pod was terminated"
VANISHED_MESSAGE = (
    "The container could not be located when the pod was deleted.  The container used to be Running"
)
INFERRED_MESSAGE = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)
POD_MESSAGES_LIMIT_BYTES = 12 * 1024
"""The room of the termination messages of one pod together; containers share it evenly."""


@frozen(kw_only=True)
class ContainerStatuses:
    """The statuses of all containers, each in the order of its part of the spec.

    `restarting` are the names of those that are to run, whatever they ended with.
    """

    init: tuple[ContainerStatus, ...] = ()
    regular: tuple[ContainerStatus, ...] = ()
    ephemeral: tuple[ContainerStatus, ...] = ()
    restarting: frozenset[str] = frozenset()

    @property
    def any_running(self) -> bool:
        """True if any container of the pod runs, of whatever kind."""
        return any(
            status.state is not None and status.state.running is not None
            for status in (*self.init, *self.regular, *self.ephemeral)
        )


def container_statuses(context: StatusContext) -> ContainerStatuses:
    """The status of each container of the spec."""
    spec, previous = context.pod.spec, context.of_pod.previous
    return ContainerStatuses(
        init=_statuses(
            context,
            ((container, init_role(container)) for container in spec.init_containers),
            previous.init_container_statuses,
        ),
        regular=_statuses(
            context,
            ((container, ContainerRole.REGULAR) for container in spec.containers),
            previous.container_statuses,
        ),
        ephemeral=_statuses(
            context,
            ((container, ContainerRole.EPHEMERAL) for container in spec.ephemeral_containers),
            previous.ephemeral_container_statuses,
        ),
        restarting=context.of_pod.restarting,
    )


def terminated(status: ContainerStatus) -> ContainerStateTerminated | None:
    """The end of the container, if it has ended."""
    return status.state.terminated if status.state is not None else None


def last_terminated(status: ContainerStatus) -> ContainerStateTerminated | None:
    """The end of the container before it, if that is known."""
    return status.last_state.terminated if status.last_state is not None else None


def _statuses(
    context: StatusContext,
    containers: Iterable[tuple[Container, ContainerRole]],
    previous: Iterable[ContainerStatus],
) -> tuple[ContainerStatus, ...]:
    known = {status.name: status for status in previous}
    return tuple(
        _status(context, container, role, known.get(container.name))
        for container, role in containers
    )


def _status(
    context: StatusContext,
    container: Container,
    role: ContainerRole,
    before: ContainerStatus | None,
) -> ContainerStatus:
    instances = context.observed.instances(container.name)
    if instances:
        status = _observed_status(context, container, instances, before)
    else:
        status = _unseen_status(context, container, role, before)
    status = _waiting_with_reason(context, container, role, status)
    if not instances and terminated(status) is None:
        # What waits to be made anew has no id or image yet: those of its predecessor are gone.
        status = evolve(
            _blank_status(context, container),
            state=status.state,
            last_state=status.last_state,
            restart_count=status.restart_count,
        )
    if role is ContainerRole.EPHEMERAL:
        return status
    if role is ContainerRole.REGULAR and container.name in context.of_pod.devices:
        status = evolve(status, allocated_resources_status=context.of_pod.devices[container.name])
    verdict = context.of_pod.probed.get(instances[0].id) if instances else None
    return _with_readiness(role, status, verdict or _first_verdict(container, status, before))


def _blank_status(
    context: StatusContext, container: Container, made: ObservedContainer | None = None
) -> ContainerStatus:
    """A container that was never made, but for the mounts of one that was."""
    reason = "PodInitializing" if context.pod.spec.init_containers else "ContainerCreating"
    return ContainerStatus(
        name=container.name,
        image=shown_name(container.image),
        state=_waiting(context, Reason(reason=reason)),
        volume_mounts=tuple(
            mount_status(
                mount.name,
                mount.mount_path,
                bool(mount.read_only),
                context.recursive_read_only and asks_for_recursive_read_only(mount)
                if made is None
                else path_in_container(mount) in made.recursively_read_only,
                _mounted_image(context, mount, made),
            )
            for mount in container.volume_mounts
        ),
    )


def _mounted_image(
    context: StatusContext, mount: VolumeMount, made: ObservedContainer | None
) -> str:
    """The image that is mounted, with its digest; empty if it is none, or is not to be told."""
    if made is None or not context.of_pod.node.tells_image_digests:
        return ""
    return made.image_mounts.get(path_in_container(mount), "")


def _unseen_status(
    context: StatusContext,
    container: Container,
    role: ContainerRole,
    before: ContainerStatus | None,
) -> ContainerStatus:
    """A container that the runtime does not show: not yet, or not any more."""
    if before is not None and _starts_over(context):
        return _status_of_next(context, container, before)
    if before is not None and terminated(before) is not None:
        return before
    blank = _blank_status(context, container)
    if before is not None:
        blank = evolve(blank, restart_count=before.restart_count, last_state=before.last_state)
    waits = _reason_to_wait(context, container) is not None
    inferred = role is ContainerRole.INIT and context.any_regular_made
    if inferred and not waits:
        completed = ContainerStateTerminated(reason="Completed", message=INFERRED_MESSAGE)
        return evolve(blank, state=ContainerState(terminated=completed))
    if before is None or before.state is None or before.state.running is None:
        return blank
    deleted = context.pod.metadata.deletion_timestamp is not None
    return evolve(
        blank,
        last_state=_unknown_end(VANISHED_MESSAGE, before.container_id),
        restart_count=before.restart_count + (0 if deleted else 1),
    )


def _starts_over(context: StatusContext) -> bool:
    """True if what the runtime does not show was removed to be made anew (KEP-5532)."""
    kind = PodConditionType.ALL_CONTAINERS_RESTARTING
    return not _is_over(context) and any(
        condition.type == kind and condition.status == ConditionStatus.TRUE
        for condition in context.of_pod.previous.conditions
    )


def _status_of_next(
    context: StatusContext, container: Container, before: ContainerStatus
) -> ContainerStatus:
    """A container that waits for its next instance: how the last one ended stays told."""
    blank = _blank_status(context, container)
    if is_restarting_all(context.pod, context.observed):
        blank = evolve(blank, state=_waiting(context, Reason(reason=RESTARTING_ALL)))
    end = terminated(before)
    last = ContainerState(terminated=end) if end is not None else before.last_state
    return evolve(blank, last_state=last, restart_count=before.restart_count)


def _observed_status(
    context: StatusContext,
    container: Container,
    instances: Sequence[ObservedContainer],
    before: ContainerStatus | None,
) -> ContainerStatus:
    """A container that the runtime shows; `instances` are its incarnations, newest first."""
    newest = instances[0]
    status = evolve(
        _blank_status(context, container, newest),
        image=newest.image or shown_name(container.image),
        image_id=newest.image_ref,
        container_id=f"{context.of_pod.node.runtime_name}://{newest.id}",
        resources=_resources(context, container, newest),
        allocated_resources=container.resources.requests if container.resources else {},
        user=container_user(newest),
        stop_signal=newest.stop_signal,
    )
    status = evolve(status, restart_count=_restart_count(status, newest, before))
    if newest.state is ObservedState.RUNNING:
        running = ContainerStateRunning(started_at=_time(newest.started_at))
        status = evolve(status, state=ContainerState(running=running))
    elif newest.state is ObservedState.EXITED:
        status = evolve(status, state=_exited(context, newest))
    elif newest.state is ObservedState.UNKNOWN:
        status = _lost(status, before)
    return evolve(status, last_state=_last_state(context, status, instances[1:], before))


def _resources(
    context: StatusContext, container: Container, newest: ObservedContainer
) -> ResourceRequirements:
    """The resources that a container which runs may use; those that others are to get."""
    allocated = container.resources or ResourceRequirements()
    if newest.state is not ObservedState.RUNNING:
        return allocated
    actuated = context.of_pod.actuated.get(container.name)
    return actual_resources(allocated, actuated, newest.resources)


def _lost(status: ContainerStatus, before: ContainerStatus | None) -> ContainerStatus:
    """A container that ran, and of which the runtime cannot say how it is."""
    if before is None or before.state is None:
        return status
    if before.state.running is not None:
        restarts = max(status.restart_count, before.restart_count + 1)
        lost = _unknown_end(LOST_MESSAGE, status.container_id)
        return evolve(status, state=lost, restart_count=restarts)
    for end in (terminated(before), last_terminated(before)):
        if end is not None and end.container_id == status.container_id:
            return evolve(status, state=ContainerState(terminated=end))
    return status


def _restart_count(
    status: ContainerStatus, newest: ObservedContainer, before: ContainerStatus | None
) -> int:
    """The count of the runtime, unless the status knows of more.

    Where containers and logs are gone, the runtime's count begins anew; the next one that runs
    is nevertheless one more than those that are known. One that was made and never started is
    counted already, and the next one takes its number.
    """
    if before is None:
        return newest.restart_count
    last = last_terminated(before)
    has_ended = terminated(before) is not None or (
        last is not None and last.container_id == before.container_id
    )
    is_new = (
        newest.state is ObservedState.RUNNING
        and before.container_id not in ("", status.container_id)
        and has_ended
    )
    return max(newest.restart_count, before.restart_count + (1 if is_new else 0))


def _last_state(
    context: StatusContext,
    status: ContainerStatus,
    older: Sequence[ObservedContainer],
    before: ContainerStatus | None,
) -> ContainerState | None:
    """The end of the incarnation before the newest one.

    An end that was told as the last one, while its container waited to be made anew, stays the
    last one when it waits no more, as its pod goes.
    """
    told = last_terminated(before) if before is not None else None
    is_own = told is not None and told.container_id == status.container_id
    if is_own and terminated(status) is not None:
        return ContainerState(terminated=told)
    if older and older[0].state is ObservedState.EXITED:
        return _exited(context, older[0])
    if before is None:
        return None
    for end in (terminated(before), last_terminated(before)):
        if end is not None and end.container_id != status.container_id:
            return ContainerState(terminated=end)
    return None


def _exited(context: StatusContext, container: ObservedContainer) -> ContainerState:
    return ContainerState(
        terminated=ContainerStateTerminated(
            exit_code=container.exit_code,
            reason=container.reason,
            message=_cut(context, container.message),
            started_at=_time(container.started_at),
            finished_at=_time(container.finished_at),
            container_id=f"{context.of_pod.node.runtime_name}://{container.id}",
        )
    )


def _waiting_with_reason(
    context: StatusContext, container: Container, role: ContainerRole, status: ContainerStatus
) -> ContainerStatus:
    """Say why a container waits that is to run (again) and does not.

    One that was stopped for its successor, as for its probe, may have ended with any exit code.
    """
    reason = _reason_to_wait(context, container)
    state = status.state
    if state is None or state.running is not None:
        return status
    if state.terminated is None:
        return status if reason is None else evolve(status, state=_waiting(context, reason))
    restarts = restarts_after(
        restart_terms(context.pod, container, role), state.terminated.exit_code
    )
    is_replaced = container.name in context.of_pod.restarting and not _is_over(context)
    if reason is None and is_replaced and not restarts:
        # The API lets no container back from an end that its policy makes final, so the end of
        # one that another takes the place of is told as its last state alone.
        reason = REPLACED
    if reason is None or not (restarts or is_replaced):
        return status
    return evolve(status, state=_waiting(context, reason), last_state=state)


def _reason_to_wait(context: StatusContext, container: Container) -> Reason | None:
    """Why the container waits, if it does; in a pod that is over none waits."""
    return None if _is_over(context) else context.of_pod.reasons.get(container.name)


def _is_over(context: StatusContext) -> bool:
    return context.of_pod.stopped or context.pod.metadata.deletion_timestamp is not None


def _with_readiness(
    role: ContainerRole, status: ContainerStatus, verdict: ProbeVerdict
) -> ContainerStatus:
    """True if the container is started and ready, in the sense that its role gives to it."""
    running = status.state is not None and status.state.running is not None
    started = running and verdict.started
    if role is ContainerRole.INIT:
        end = terminated(status)
        ready = end is not None and end.exit_code == 0
    else:
        ready = started and verdict.ready
    return evolve(status, started=started, ready=ready)


def _first_verdict(
    container: Container, status: ContainerStatus, before: ContainerStatus | None
) -> ProbeVerdict:
    """The verdict before a probe was run: of an instance that is known, what was told last."""
    told = ContainerStatus()
    if before is not None and before.container_id == status.container_id:
        told = before
    return ProbeVerdict(
        started=container.startup_probe is None or bool(told.started),
        ready=container.readiness_probe is None or told.ready,
    )


def without_open_ends(pod: Pod, statuses: ContainerStatuses) -> ContainerStatuses:
    """Nothing of the pod runs any more: what has no known end is taken to have failed.

    Containers that never had their turn, because an init container did not succeed, go on
    waiting for ever: they are no failure of their own.
    """
    begun = max((i + 1 for i, s in enumerate(statuses.init) if _was_begun(s)), default=1)
    regular = statuses.regular
    if _is_initialized(pod, statuses):
        regular = tuple(_ended(status) for status in regular)
    return evolve(
        statuses,
        init=tuple(_ended(s) if i < begun else s for i, s in enumerate(statuses.init)),
        regular=regular,
    )


def _is_initialized(pod: Pod, statuses: ContainerStatuses) -> bool:
    """True if the regular containers had their turn."""
    if not pod.spec.init_containers or any(_was_begun(status) for status in statuses.regular):
        return True
    if init_role(pod.spec.init_containers[-1]) is ContainerRole.SIDECAR:
        return False
    ends = (terminated(statuses.init[-1]), last_terminated(statuses.init[-1]))
    return any(end is not None and end.exit_code == 0 for end in ends)


def _was_begun(status: ContainerStatus) -> bool:
    return (
        status.state is None or status.state.waiting is None or last_terminated(status) is not None
    )


def _ended(status: ContainerStatus) -> ContainerStatus:
    if terminated(status) is not None:
        return status
    end = _unknown_end(LOST_MESSAGE, status.container_id)
    return evolve(status, state=end, ready=False, started=False)


def _unknown_end(message: str, container_id: str) -> ContainerState:
    return ContainerState(
        terminated=ContainerStateTerminated(
            reason=CONTAINER_STATUS_UNKNOWN,
            message=message,
            exit_code=UNKNOWN_EXIT_CODE,
            container_id=container_id,
        )
    )


def _waiting(context: StatusContext, reason: Reason) -> ContainerState:
    message = _cut(context, reason.message)
    return ContainerState(waiting=ContainerStateWaiting(reason=reason.reason, message=message))


def _time(ns: int) -> Time | None:
    return Time.from_ns(ns) if ns > 0 else None


def _cut(context: StatusContext, message: str) -> str:
    """The beginning of a container's message, of which all of its pod have equal parts."""
    spec = context.pod.spec
    count = len(spec.containers) + len(spec.init_containers)
    limit_bytes = POD_MESSAGES_LIMIT_BYTES // max(1, count)
    # No character has less than a byte, so nothing of the rest of a long message is encoded.
    return message[:limit_bytes].encode(errors="replace")[:limit_bytes].decode(errors="ignore")
