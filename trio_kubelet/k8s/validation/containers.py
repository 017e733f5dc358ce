"""Containers of all three kinds: what they share, and what only some may have."""

from collections.abc import Iterator, Mapping

import attrs
from attrs import frozen

from state_machines.image import PullPolicy
from trio_kubelet.k8s.base import wire_name
from trio_kubelet.k8s.container import (
    Container,
    ContainerRestartPolicy,
    ContainerRestartRule,
    ContainerRestartRuleAction,
    ContainerRestartRuleOnExitCodesOperator,
    EphemeralContainer,
    TerminationMessagePolicy,
)
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
    too_many,
    unsupported,
)
from trio_kubelet.k8s.pod import PodSpec
from trio_kubelet.k8s.totals import is_sidecar
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.validation.environment import check_variable_sources, check_variables
from trio_kubelet.k8s.validation.mounts import check_devices, check_mounts
from trio_kubelet.k8s.validation.network import check_host_ports, check_ports
from trio_kubelet.k8s.validation.probes import check_probes_and_hooks
from trio_kubelet.k8s.validation.resources import (
    check_container_resources,
    check_resize_policies,
)
from trio_kubelet.k8s.validation.security import check_container_security
from trio_kubelet.k8s.volumes import Volume

MOST_RESTART_RULES = 20
MOST_EXIT_CODES = 255

_NOT_IN_INIT_CONTAINERS = ("lifecycle", "liveness_probe", "readiness_probe", "startup_probe")
_NOT_IN_EPHEMERAL_CONTAINERS = (
    *_NOT_IN_INIT_CONTAINERS,
    "ports",
    "resources",
    "resize_policy",
    "restart_policy",
    "restart_policy_rules",
)


@frozen(kw_only=True)
class PodContext:
    """The facts of the pod that the checks of a container need."""

    volumes: Mapping[str, Volume]
    claim_names: frozenset[str]
    grace_period: int | None
    restart_policy: str
    host_users: bool
    os_name: str

    @classmethod
    def of(cls, spec: PodSpec) -> "PodContext":
        """Gather them."""
        return cls(
            volumes={volume.name: volume for volume in spec.volumes if volume.name},
            claim_names=frozenset(claim.name for claim in spec.resource_claims if claim.name),
            grace_period=spec.termination_grace_period_seconds,
            restart_policy=spec.restart_policy,
            host_users=spec.host_users is not False,
            os_name=spec.os.name if spec.os is not None else "",
        )


def containers_with_paths(spec: PodSpec) -> list[tuple[str, Container]]:
    """Return all containers of a pod, each with its path."""
    kinds: dict[str, tuple[Container, ...]] = {
        "initContainers": spec.init_containers,
        "containers": spec.containers,
        "ephemeralContainers": spec.ephemeral_containers,
    }
    return [
        (f"spec.{kind}[{index}]", container)
        for kind, containers in kinds.items()
        for index, container in enumerate(containers)
    ]


def check_containers(spec: PodSpec) -> Iterator[FieldError]:
    """Check all containers of a pod. Names are unique over all kinds."""
    around = PodContext.of(spec)
    if not spec.containers:
        yield required("spec.containers")
    for path, container in containers_with_paths(spec):
        yield from _check_container(container, around, path)
    yield from _check_unique_names(spec)
    regular = [(f"spec.containers[{i}]", one) for i, one in enumerate(spec.containers)]
    yield from check_host_ports(regular)
    for path, container in regular:
        yield from check_probes_and_hooks(container, around.grace_period, around.os_name, path)
    for index, container in enumerate(spec.init_containers):
        yield from _check_init_container(container, around, f"spec.initContainers[{index}]")
    others = {one.name for one in (*spec.init_containers, *spec.containers)}
    for index, ephemeral in enumerate(spec.ephemeral_containers):
        yield from _check_ephemeral(ephemeral, others, f"spec.ephemeralContainers[{index}]")


def _check_unique_names(spec: PodSpec) -> Iterator[FieldError]:
    kinds: dict[str, tuple[Container, ...]] = {
        "containers": spec.containers,
        "initContainers": spec.init_containers,
        "ephemeralContainers": spec.ephemeral_containers,
    }
    seen: set[str] = set()
    for kind, containers in kinds.items():
        for index, container in enumerate(containers):
            if container.name and container.name in seen:
                yield duplicate(f"spec.{kind}[{index}].name", container.name)
            seen.add(container.name)


def _check_container(container: Container, around: PodContext, path: str) -> Iterator[FieldError]:
    """Check what all kinds of containers share."""
    if not container.name:
        yield required(f"{path}.name")
    else:
        yield from all_invalid(f"{path}.name", container.name, formats.dns_label(container.name))
    if not container.image:
        yield required(f"{path}.image")
    elif container.image != container.image.strip():
        detail = "must not have leading or trailing whitespace"
        yield invalid(f"{path}.image", container.image, detail)
    choices = {
        "imagePullPolicy": (container.image_pull_policy, PullPolicy),
        "terminationMessagePolicy": (
            container.termination_message_policy,
            TerminationMessagePolicy,
        ),
    }
    for name, (value, known) in choices.items():
        if not value:
            yield required(f"{path}.{name}")
        elif value not in list(known):
            yield unsupported(f"{path}.{name}", value, known)
    yield from check_ports(container.ports, f"{path}.ports")
    yield from check_variables(container.env, frozenset(around.volumes), f"{path}.env")
    yield from check_variable_sources(container.env_from, f"{path}.envFrom")
    yield from check_mounts(container, around.volumes, f"{path}.volumeMounts")
    yield from check_devices(container, around.volumes, f"{path}.volumeDevices")
    yield from check_container_resources(
        container.resources, around.claim_names, f"{path}.resources"
    )
    yield from check_resize_policies(container, around.restart_policy, f"{path}.resizePolicy")
    yield from check_container_security(
        container.security_context, around.host_users, f"{path}.securityContext"
    )
    yield from _check_restart_policy(container, path)


def _check_restart_policy(container: Container, path: str) -> Iterator[FieldError]:
    """Check the container's own restart policy and its rules (KEP-5307)."""
    policy, rules = container.restart_policy, container.restart_policy_rules
    if policy and policy not in list(ContainerRestartPolicy):
        yield unsupported(f"{path}.restartPolicy", policy, ContainerRestartPolicy)
    if rules and not policy:
        detail = "must specify restartPolicy when restart rules are used"
        yield required(f"{path}.restartPolicy", detail)
    where = f"{path}.restartPolicyRules"
    if len(rules) > MOST_RESTART_RULES:
        yield too_many(where, len(rules), MOST_RESTART_RULES)
    for index, rule in enumerate(rules):
        yield from _check_restart_rule(rule, f"{where}[{index}]")


def _check_restart_rule(rule: ContainerRestartRule, path: str) -> Iterator[FieldError]:
    if rule.action not in list(ContainerRestartRuleAction):
        yield unsupported(f"{path}.action", rule.action, ContainerRestartRuleAction)
    codes, where = rule.exit_codes, f"{path}.exitCodes"
    if codes is None:
        yield required(where, "must be specified")
        return
    known = ContainerRestartRuleOnExitCodesOperator
    if codes.operator not in list(known):
        yield unsupported(f"{where}.operator", codes.operator, known)
    if len(codes.values) > MOST_EXIT_CODES:
        yield too_many(f"{where}.values", len(codes.values), MOST_EXIT_CODES)


def _check_init_container(
    container: Container, around: PodContext, path: str
) -> Iterator[FieldError]:
    yield from check_host_ports([(path, container)])
    if is_sidecar(container):
        yield from check_probes_and_hooks(container, around.grace_period, around.os_name, path)
        return
    detail = "may not be set for init containers without restartPolicy=Always"
    yield from _check_unset(container, _NOT_IN_INIT_CONTAINERS, path, detail)


def _check_ephemeral(
    container: EphemeralContainer, others: set[str], path: str
) -> Iterator[FieldError]:
    detail = "cannot be set for an Ephemeral Container"
    yield from _check_unset(container, _NOT_IN_EPHEMERAL_CONTAINERS, path, detail)
    target = container.target_container_name
    if target and target not in others:
        yield not_found(f"{path}.targetContainerName", target)
    for index, mount in enumerate(container.volume_mounts):
        given = {"subPath": mount.sub_path, "subPathExpr": mount.sub_path_expr}
        for name, value in given.items():
            if value:
                yield forbidden(f"{path}.volumeMounts[{index}].{name}", detail)


def _check_unset(
    container: Container, names: tuple[str, ...], path: str, detail: str
) -> Iterator[FieldError]:
    for name in names:
        if getattr(container, name) not in (None, "", ()):
            yield forbidden(f"{path}.{wire_name(getattr(attrs.fields(Container), name))}", detail)
