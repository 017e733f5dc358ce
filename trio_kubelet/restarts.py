"""What a pod's spec says about restarts, in the terms of the container machine.

The plan of a pod and its status must agree on what runs again; both ask here.
"""

from state_machines.container import (
    ContainerRole,
    RestartPolicy,
    RestartRule,
    RestartTerms,
    container_role,
)
from trio_kubelet.k8s import Container, Pod


def is_sidecar(container: Container) -> bool:
    """Whether an init container is restartable (KEP-753)."""
    return container.restart_policy == RestartPolicy.ALWAYS


def init_role(container: Container) -> ContainerRole:
    """The role of an entry of spec.initContainers."""
    return container_role(is_init=True, container_policy=container.restart_policy)


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
