"""Restarts of a pod's containers, as its spec asks for them, in the terms of the container machine.

The plan of a pod and its status must agree on what runs again; both ask here.
"""

import math
from collections.abc import Iterator, Mapping

from state_machines.container import (
    ContainerRole,
    RestartAction,
    RestartRule,
    RestartTerms,
    container_role,
    restarts_after,
    restarts_all,
)
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState


def init_role(container: Container) -> ContainerRole:
    """The role of an entry of spec.initContainers."""
    return container_role(is_init=True, container_policy=container.restart_policy)


def roles(pod: Pod) -> Iterator[tuple[Container, ContainerRole]]:
    """All containers that run again with their pod, in the order in which they are started."""
    yield from ((container, init_role(container)) for container in pod.spec.init_containers)
    yield from ((container, ContainerRole.REGULAR) for container in pod.spec.containers)


def all_containers(pod: Pod) -> Iterator[tuple[Container, ContainerRole]]:
    """All containers of the spec, ephemeral ones first, in the order in which they are started."""
    yield from ((each, ContainerRole.EPHEMERAL) for each in pod.spec.ephemeral_containers)
    yield from roles(pod)


def may_restart_all(pod: Pod) -> bool:
    """True if the exit of a container may restart all of them (KEP-5532)."""
    action = RestartAction.RESTART_ALL_CONTAINERS
    return any(rule.action == action for c, _ in roles(pod) for rule in c.restart_policy_rules)


def restart_terms(pod: Pod, container: Container, role: ContainerRole) -> RestartTerms:
    """Gather all that decides about the restart of one container."""
    return RestartTerms(
        pod_policy=pod.spec.restart_policy,
        role=role,
        container_policy=container.restart_policy,
        rules=tuple(
            RestartRule(
                action=rule.action,
                operator=rule.exit_codes.operator if rule.exit_codes else "",
                exit_codes=frozenset(rule.exit_codes.values if rule.exit_codes else ()),
            )
            for rule in container.restart_policy_rules
        ),
    )


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
    """The time at which the last regular container ended for good; infinite if one did not."""
    times = [-math.inf]
    for container in pod.spec.containers:
        end = ended.get(container.name)
        terms = restart_terms(pod, container, ContainerRole.REGULAR)
        if end is None or restarts_after(terms, end.exit_code):
            return math.inf
        times.append(end.finished_at)
    return max(times)


def is_restarting_all(pod: Pod, observed: ObservedPod) -> bool:
    """True if the runtime shows an exit that restarts all, and so not all is removed yet."""
    sandbox = observed.ready_sandbox
    if sandbox is None or not may_restart_all(pod):
        return False
    newest = {each.name: each for each in reversed(observed.containers)}
    ended = {name: c for name, c in newest.items() if c.state is ObservedState.EXITED}
    return bool(exits_that_restart_all(pod, ended, sandbox.id))
