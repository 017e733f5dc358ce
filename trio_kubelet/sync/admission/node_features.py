"""The abilities of the machine, its runtime and this agent that a pod asks for."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from attrs import evolve

from trio_kubelet.k8s import (
    OS_LABEL,
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_WITH_HOST_NETWORK,
    AppArmorProfileType,
    ContainerRestartRuleAction,
    NodeFeatures,
    OSName,
    Pod,
    Quantity,
    SupplementalGroupsPolicy,
)
from trio_kubelet.runtime.config.security import apparmor_profile
from trio_kubelet.sync.admission.admission_result import Rejection

MAX_CONTAINERS = 500
"""Of a pod, of all kinds: each status, plan and look of a pod goes over all of them."""
TOO_MANY_CONTAINERS = "TooManyContainers"
TOO_MANY_RESOURCES = "TooManyResources"
TOO_MANY_CLAIMS = "TooManyResourceClaims"
MAX_ITEMS = 4096
"""Of volumes, and of mounts and ports of all containers: configs and statuses go over them."""
MAX_DISKS = 128
"""Of the sources iscsi and fc: each has a task, records and programs of its own."""
MAX_AMOUNTS = 8192
"""Of requests and limits: 500 containers may name sixteen resources in each."""
MAX_RESOURCES = 128
"""With different names: sums over pods, statuses and records have all of them."""
MAX_CLAIMS = 128
"""Resource claims of a pod: each is asked for, and kept for as long as the pod is there."""
MAX_CLAIM_USES = 1024
"""Claims, or requests of them, that all containers name: configs and statuses go over them."""


def too_many_items(pod: Pod) -> Rejection | None:
    """Reject a pod with more of what it can have many of than are served beside other pods."""
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers)
    mounts = sum(len(container.volume_mounts) for container in containers)
    ports = sum(len(container.ports) for container in containers)
    uses = sum(len(each.resources.claims) for each in containers if each.resources is not None)
    disks = sum(each.iscsi is not None or each.fc is not None for each in spec.volumes)
    amounts = _amounts(pod)
    names = set(chain.from_iterable(amounts))
    both = "spec.initContainers and spec.containers"
    for reason, what, count, limit in (
        (TOO_MANY_CONTAINERS, both, len(containers), MAX_CONTAINERS),
        ("TooManyVolumes", "spec.volumes", len(spec.volumes), MAX_ITEMS),
        ("TooManyVolumes", "spec.volumes[*].iscsi and fc", disks, MAX_DISKS),
        ("TooManyVolumeMounts", "spec.containers[*].volumeMounts", mounts, MAX_ITEMS),
        ("TooManyPorts", "spec.containers[*].ports", ports, MAX_ITEMS),
        (TOO_MANY_CLAIMS, "spec.resourceClaims", len(spec.resource_claims), MAX_CLAIMS),
        (TOO_MANY_CLAIMS, "spec.containers[*].resources.claims", uses, MAX_CLAIM_USES),
        (TOO_MANY_RESOURCES, "requests and limits", sum(map(len, amounts)), MAX_AMOUNTS),
        (TOO_MANY_RESOURCES, "names of resources", len(names), MAX_RESOURCES),
    ):
        if count > limit:
            message = f"{what}: Too many: {count}: must have at most {limit} items together"
            return Rejection(reason=reason, message=message)
    return None


def _amounts(pod: Pod) -> Sequence[Mapping[str, Quantity]]:
    """The requests and limits of all containers and of the pod, and its overhead."""
    spec = pod.spec
    containers = (*spec.init_containers, *spec.containers)
    parts = (spec.resources, *(container.resources for container in containers))
    given = (part for part in parts if part is not None)
    return [spec.overhead, *chain.from_iterable((part.requests, part.limits) for part in given)]


def with_ephemeral_containers_that_fit(pod: Pod) -> tuple[Pod, str]:
    """The pod without ephemeral containers beyond the limit, and why some were left out, or "".

    They come when the pod runs: nothing else of it is to end for them.
    """
    count = len(pod.spec.ephemeral_containers)
    others = len(pod.spec.init_containers) + len(pod.spec.containers)
    room = max(0, MAX_CONTAINERS - others)
    if count <= room:
        return pod, ""
    spec = evolve(pod.spec, ephemeral_containers=pod.spec.ephemeral_containers[:room])
    problem = (
        f"spec.ephemeralContainers: Too many: {count}: must have at most {room} items beside "
        f"{others} other containers; ignoring the last {count - room}"
    )
    return evolve(pod, spec=spec), problem


def wrong_os(pod: Pod) -> Rejection | None:
    """Reject a pod that is labelled or made for another operating system (API: spec.os)."""
    if pod.metadata.labels.get(OS_LABEL, OSName.LINUX) != OSName.LINUX:
        return Rejection(
            reason="PodOSSelectorNodeLabelDoesNotMatch",
            message=f"Failed to admit pod as the `{OS_LABEL}` label doesn't match node label",
        )
    if pod.spec.os is not None and pod.spec.os.name != OSName.LINUX:
        return Rejection(
            reason="PodOSNotSupported",
            message="Failed to admit pod as the OS field doesn't match node OS",
        )
    return None


def unsupported_groups_policy(pod: Pod, features: NodeFeatures | None) -> Rejection | None:
    """Reject strict supplemental groups where the runtime does not have them (KEP-3619).

    `features` are the runtime's, None if it tells of none.
    """
    context = pod.spec.security_context
    strict = SupplementalGroupsPolicy.STRICT
    if context is None or context.supplemental_groups_policy != strict:
        return None
    if features is not None and features.supplemental_groups_policy:
        return None
    return Rejection(
        reason="SupplementalGroupsPolicyNotSupported",
        message=f"SupplementalGroupsPolicy={strict} is not supported in this node",
    )


def unenforceable_apparmor(pod: Pod, *, enabled: bool) -> Rejection | None:
    """Reject a pod with a profile where the kernel has no AppArmor, or that names no profile."""
    profiles = [
        profile
        for container in pod.spec.admitted_containers
        if (profile := apparmor_profile(pod, container)) is not None
        and profile.type != AppArmorProfileType.UNCONFINED
    ]
    if profiles and not enabled:
        return _apparmor("AppArmor is not enabled on the host")
    for profile in profiles:
        name = profile.localhost_profile or ""
        if profile.type == AppArmorProfileType.LOCALHOST and not name.strip():
            return _apparmor(f'invalid empty AppArmor profile name: "{name}"')
    return None


def undeclared_features(pod: Pod, declared: Collection[str]) -> Rejection | None:
    """Reject a pod that needs features which the node does not declare (KEP-5328)."""
    missing = sorted(needed_features(pod) - set(declared))
    if not missing:
        return None
    return Rejection(
        reason="PodFeatureUnsupported",
        message=f"Pod requires node features that are not available: {', '.join(missing)}",
    )


def needed_features(pod: Pod) -> set[str]:
    """The features without which a pod cannot be what its spec says (v1.36)."""
    needed = set()
    containers = pod.spec.admitted_containers
    rules = (rule for container in containers for rule in container.restart_policy_rules)
    if any(rule.action == ContainerRestartRuleAction.RESTART_ALL_CONTAINERS for rule in rules):
        needed.add(RESTART_ALL_CONTAINERS)
    if pod.spec.host_network and pod.spec.host_users is False:
        needed.add(USER_NAMESPACES_WITH_HOST_NETWORK)
    return needed


def missing_user_namespace(pod: Pod, why: str) -> Rejection | None:
    """Reject a pod that is to have its own user namespace (KEP-127) and cannot.

    `why` it cannot; empty if it can.
    """
    if pod.spec.host_users is not False or not why:
        return None
    return Rejection(reason="UserNamespacesNotSupported", message=why)


def unknown_runtime_class(pod: Pod) -> Rejection | None:
    """Reject a runtime class where nobody tells of them; another runtime is never the answer."""
    name = pod.spec.runtime_class_name
    if not name:
        return None
    return Rejection(reason="RuntimeClass", message=f'RuntimeClass "{name}" not found')


def _apparmor(why: str) -> Rejection:
    return Rejection(reason="AppArmor", message=f"Cannot enforce AppArmor: {why}")
