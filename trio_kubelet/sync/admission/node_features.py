"""Whether the machine, its runtime and this agent can do what a pod asks for."""

from collections.abc import Collection

from trio_kubelet.k8s import (
    OS_LABEL,
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_WITH_HOST_NETWORK,
    AppArmorProfileType,
    Container,
    ContainerRestartRuleAction,
    NodeFeatures,
    OSName,
    Pod,
    SupplementalGroupsPolicy,
)
from trio_kubelet.runtime.config.resource_claims import NO_RESOURCE_CLAIMS, has_resource_claims
from trio_kubelet.runtime.config.security import apparmor_profile
from trio_kubelet.sync.admission.admission_result import Rejection


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
        for container in _containers(pod)
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
    rules = (rule for container in _containers(pod) for rule in container.restart_policy_rules)
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


def unprepared_devices(pod: Pod) -> Rejection | None:
    """Reject a pod with resource claims (KEP-4381): their devices cannot be prepared."""
    if not has_resource_claims(pod):
        return None
    return Rejection(reason="FailedPrepareDynamicResources", message=NO_RESOURCE_CLAIMS)


def unknown_runtime_class(pod: Pod) -> Rejection | None:
    """Reject a runtime class where nobody tells of them; another runtime is never the answer."""
    name = pod.spec.runtime_class_name
    if not name:
        return None
    return Rejection(reason="RuntimeClass", message=f'RuntimeClass "{name}" not found')


def _containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _apparmor(why: str) -> Rejection:
    return Rejection(reason="AppArmor", message=f"Cannot enforce AppArmor: {why}")
