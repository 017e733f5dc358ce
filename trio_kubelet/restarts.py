"""What a pod's spec says about restarts, in the terms of the container machine.

The plan of a pod and its status must agree on what runs again; both ask here.
"""

from collections.abc import Iterator

from state_machines.container import (
    ContainerRole,
    RestartAction,
    RestartRule,
    RestartTerms,
    container_role,
)
from trio_kubelet.k8s import Container, Pod


def init_role(container: Container) -> ContainerRole:
    """The role of an entry of spec.initContainers."""
    return container_role(is_init=True, container_policy=container.restart_policy)


def roles(pod: Pod) -> Iterator[tuple[Container, ContainerRole]]:
    """All containers that run again with their pod, in the order in which they are started."""
    yield from ((container, init_role(container)) for container in pod.spec.init_containers)
    yield from ((container, ContainerRole.REGULAR) for container in pod.spec.containers)


def may_restart_all(pod: Pod) -> bool:
    """Whether the exit of a container may restart all of them (KEP-5532)."""
    action = RestartAction.RESTART_ALL_CONTAINERS
    return any(rule.action == action for c, _ in roles(pod) for rule in c.restart_policy_rules)


def restart_terms(pod: Pod, container: Container, role: ContainerRole) -> RestartTerms:
    """What decides about the restart of one container."""
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
