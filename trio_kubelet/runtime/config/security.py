"""Under which identity and confinement sandboxes and containers run.

A container's own security context wins over the pod's, field by field; groups and namespaces
are the pod's alone. What is left open by both falls to the image (the user) or to the node
(seccomp). (API: PodSecurityContext, SecurityContext)
"""

from attrs import field, frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import (
    AppArmorProfile,
    AppArmorProfileType,
    Capabilities,
    Container,
    Pod,
    PodSecurityContext,
    ProcMountType,
    SeccompProfile,
    SeccompProfileType,
    SecurityContext,
    SELinuxOptions,
    SupplementalGroupsPolicy,
)
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.node_facts import NodeFacts

_MAX_USER_ID = 2**31 - 1
_SHOWN_CHARACTERS = 1024
"""Of the name of an image's user, which an image may have megabytes of."""

NO_USER_NAMESPACE = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"

MASKED_PATHS = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_APPARMOR_ANNOTATION_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
_APPARMOR_LOCALHOST_PREFIX = "localhost/"
_DEPRECATED_APPARMOR_NAMES = {
    AppArmorProfileType.RUNTIME_DEFAULT: "runtime/default",
    AppArmorProfileType.UNCONFINED: "unconfined",
}

_RUNTIME_DEFAULT, _UNCONFINED, _LOCALHOST = map(
    cri.SecurityProfileProfileType.from_string, ("RuntimeDefault", "Unconfined", "Localhost")
)
_POD, _CONTAINER, _NODE, _TARGET = map(
    cri.NamespaceMode.from_string, ("POD", "CONTAINER", "NODE", "TARGET")
)
_GROUPS_POLICIES = {
    policy: cri.SupplementalGroupsPolicy.from_string(policy) for policy in SupplementalGroupsPolicy
}


@frozen
class ImageUser:
    """The user that an image names: a number, or a name that only the image can resolve."""

    uid: int | None = 0
    username: str = ""


@frozen(kw_only=True)
class IdMapping:
    """A range of user or group ids: `length` of them from 0 in the pod are `host_id`… outside."""

    host_id: int
    length: int
    container_id: int = 0


@frozen(kw_only=True)
class SecurityFacts:
    """The node's additions to a pod's security.

    `user_namespace` is the range of ids given to a pod with `hostUsers: false` (KEP-127), None
    for others. `extra_groups` are the groups that its volumes ask for.
    """

    user_namespace: IdMapping | None = None
    extra_groups: tuple[int, ...] = field(default=())


NO_SECURITY_FACTS = SecurityFacts()


def sandbox_security_context(
    pod: Pod, facts: SecurityFacts = NO_SECURITY_FACTS
) -> cri.LinuxSandboxSecurityContext:
    """The security context of the sandbox.

    Its seccomp profile is the runtime's default whatever the pod says: nothing of the pod runs
    in the sandbox itself. It is privileged if any container is. Raises ConfigError as
    `namespace_options`.
    """
    context = pod.spec.security_context or PodSecurityContext()
    groups = (*_fs_groups(context), *facts.extra_groups, *context.supplemental_groups)
    built = cri.LinuxSandboxSecurityContext(
        namespace_options=namespace_options(pod, facts.user_namespace),
        seccomp=cri.SecurityProfile(profile_type=_RUNTIME_DEFAULT),
        supplemental_groups=list(groups),
        supplemental_groups_policy=_groups_policy(context),
        privileged=any(map(_is_privileged, pod.spec.all_containers)),
    )
    if context.run_as_user is not None:
        built.run_as_user = cri.Int64Value(value=context.run_as_user)
    if context.run_as_group is not None:
        built.run_as_group = cri.Int64Value(value=context.run_as_group)
    if context.se_linux_options is not None:
        built.selinux_options = _selinux(context.se_linux_options)
    return built


def container_security_context(
    pod: Pod,
    container: Container,
    node: NodeFacts,
    *,
    image_user: ImageUser,
    facts: SecurityFacts = NO_SECURITY_FACTS,
    target_container_id: str = "",
) -> cri.LinuxContainerSecurityContext:
    """The security context of a container.

    `target_container_id` is the container whose processes an ephemeral container shall see.
    Raises ConfigError where the context cannot be satisfied (runAsNonRoot, profiles, hostUsers).
    """
    verify_run_as_non_root(pod, container, image_user)
    pod_context = pod.spec.security_context or PodSecurityContext()
    own = container.security_context or SecurityContext()
    groups = (*_fs_groups(pod_context), *pod_context.supplemental_groups, *facts.extra_groups)
    unmasked = own.proc_mount == ProcMountType.UNMASKED
    built = cri.LinuxContainerSecurityContext(
        namespace_options=_container_namespaces(pod, facts, target_container_id),
        privileged=bool(own.privileged),
        readonly_rootfs=bool(own.read_only_root_filesystem),
        no_new_privs=own.allow_privilege_escalation is False,
        supplemental_groups=list(groups),
        supplemental_groups_policy=_groups_policy(pod_context),
        masked_paths=[] if unmasked else [*MASKED_PATHS, *node.thermal_throttle_paths],
        readonly_paths=[] if unmasked else list(READ_ONLY_PATHS),
        seccomp=_seccomp(own.seccomp_profile or pod_context.seccomp_profile, node),
    )
    if own.capabilities is not None:
        built.capabilities = _capabilities(own.capabilities)
    selinux = own.se_linux_options or pod_context.se_linux_options
    if selinux is not None:
        built.selinux_options = _selinux(selinux)
    _set_user(built, own, pod_context, image_user)
    _set_apparmor(built, apparmor_profile(pod, container))
    return built


def namespace_options(pod: Pod, user_namespace: IdMapping | None = None) -> cri.NamespaceOption:
    """The namespaces that the pod has to itself, and those that it shares with the node.

    Raises ConfigError for a pod that is to have a user namespace and was given none: the node's
    own is never the answer.
    """
    spec = pod.spec
    if spec.host_users is False and user_namespace is None:
        raise ConfigError(NO_USER_NAMESPACE)
    pid = _POD if spec.share_process_namespace else _CONTAINER
    return cri.NamespaceOption(
        network=_NODE if spec.host_network else _POD,
        pid=_NODE if spec.host_pid else pid,
        ipc=_NODE if spec.host_ipc else _POD,
        userns_options=_user_namespace(user_namespace),
    )


def verify_run_as_non_root(pod: Pod, container: Container, image_user: ImageUser) -> None:
    """Raises ConfigError if the container would run as root although `runAsNonRoot` forbids it."""
    pod_context = pod.spec.security_context or PodSecurityContext()
    own = container.security_context or SecurityContext()
    demanded = _first_set(own.run_as_non_root, pod_context.run_as_non_root)
    if not demanded:
        return
    where = f'(pod: "{pod_full_name(pod)}", container: {container.name})'
    run_as_user = _first_set(own.run_as_user, pod_context.run_as_user)
    if run_as_user is not None:
        if run_as_user == 0:
            raise ConfigError(f"container's runAsUser breaks non-root policy {where}")
        return
    if image_user.uid is None:
        if image_user.username:
            raise ConfigError(
                "container has runAsNonRoot and image has non-numeric user"
                f" ({image_user.username[:_SHOWN_CHARACTERS]}), cannot verify user is non-root"
                f" {where}"
            )
        return
    if image_user.uid == 0:
        raise ConfigError(f"container has runAsNonRoot and image will run as root {where}")
    if not 0 < image_user.uid <= _MAX_USER_ID:
        raise ConfigError(
            f"container has runAsNonRoot and image has an invalid user id ({image_user.uid})."
            f" (Must be 1-({_MAX_USER_ID})): must be between 0 and {_MAX_USER_ID}, inclusive"
            f" {where}"
        )


def apparmor_profile(pod: Pod, container: Container) -> AppArmorProfile | None:
    """The AppArmor profile of a container: its own, by annotation, or the pod's.

    Static pods do not pass the API server, which turns the old annotations into fields.
    """
    own = container.security_context
    if own is not None and own.app_armor_profile is not None:
        return own.app_armor_profile
    annotated = _annotated_apparmor_profile(pod, container)
    if annotated is not None:
        return annotated
    return pod.spec.security_context.app_armor_profile if pod.spec.security_context else None


def id_mapping(mapping: IdMapping) -> cri.IdMapping:
    """The range of ids as CRI writes it."""
    return cri.IdMapping(
        host_id=mapping.host_id, container_id=mapping.container_id, length=mapping.length
    )


def _user_namespace(mapping: IdMapping | None) -> cri.UserNamespace:
    if mapping is None:
        return cri.UserNamespace(mode=_NODE)
    ids = id_mapping(mapping)
    return cri.UserNamespace(mode=_POD, uids=[ids], gids=[ids])


def _container_namespaces(
    pod: Pod, facts: SecurityFacts, target_container_id: str
) -> cri.NamespaceOption:
    options = namespace_options(pod, facts.user_namespace)
    if target_container_id and options.pid == _CONTAINER:
        options.pid = _TARGET
        options.target_id = target_container_id
    return options


def _set_user(
    built: cri.LinuxContainerSecurityContext,
    own: SecurityContext,
    pod_context: PodSecurityContext,
    image_user: ImageUser,
) -> None:
    user = _first_set(own.run_as_user, pod_context.run_as_user)
    if user is None:
        user = image_user.uid
        built.run_as_username = image_user.username
    if user is not None:
        built.run_as_user = cri.Int64Value(value=user)
    group = _first_set(own.run_as_group, pod_context.run_as_group)
    if group is not None:
        built.run_as_group = cri.Int64Value(value=group)


def _seccomp(profile: SeccompProfile | None, node: NodeFacts) -> cri.SecurityProfile:
    if profile is None:
        by_default = node.configuration.seccomp_default or node.settings.options.seccomp_default
        default = _RUNTIME_DEFAULT if by_default else _UNCONFINED
        return cri.SecurityProfile(profile_type=default)
    if profile.type == SeccompProfileType.RUNTIME_DEFAULT:
        return cri.SecurityProfile(profile_type=_RUNTIME_DEFAULT)
    if profile.type != SeccompProfileType.LOCALHOST:
        return cri.SecurityProfile(profile_type=_UNCONFINED)
    if not profile.localhost_profile:
        raise ConfigError("localhostProfile must be set if seccompProfile type is Localhost.")
    return cri.SecurityProfile(
        profile_type=_LOCALHOST,
        localhost_ref=f"{node.settings.options.root_dir}/seccomp/{profile.localhost_profile}",
    )


def _set_apparmor(
    built: cri.LinuxContainerSecurityContext, profile: AppArmorProfile | None
) -> None:
    """Sets the profile in the form of today and in that of runtimes before CRI had one."""
    if profile is None:
        return
    if profile.type in _DEPRECATED_APPARMOR_NAMES:
        kind = AppArmorProfileType(profile.type)
        built.apparmor = cri.SecurityProfile(profile_type=_APPARMOR_TYPES[kind])
        built.apparmor_profile = _DEPRECATED_APPARMOR_NAMES[kind]
        return
    if profile.type != AppArmorProfileType.LOCALHOST:
        raise ConfigError(f'unknown apparmor profile type: "{profile.type}"')
    if profile.localhost_profile is None:
        raise ConfigError("missing localhost apparmor profile name")
    built.apparmor = cri.SecurityProfile(
        profile_type=_LOCALHOST, localhost_ref=profile.localhost_profile
    )
    built.apparmor_profile = f"{_APPARMOR_LOCALHOST_PREFIX}{profile.localhost_profile}"


_APPARMOR_TYPES = {
    AppArmorProfileType.RUNTIME_DEFAULT: _RUNTIME_DEFAULT,
    AppArmorProfileType.UNCONFINED: _UNCONFINED,
}


def _annotated_apparmor_profile(pod: Pod, container: Container) -> AppArmorProfile | None:
    name = pod.metadata.annotations.get(f"{_APPARMOR_ANNOTATION_PREFIX}{container.name}", "")
    for kind, annotated in _DEPRECATED_APPARMOR_NAMES.items():
        if name == annotated:
            return AppArmorProfile(type=kind)
    if not name.startswith(_APPARMOR_LOCALHOST_PREFIX):
        return None
    return AppArmorProfile(
        type=AppArmorProfileType.LOCALHOST,
        localhost_profile=name.removeprefix(_APPARMOR_LOCALHOST_PREFIX),
    )


def _capabilities(capabilities: Capabilities) -> cri.Capability:
    return cri.Capability(
        add_capabilities=list(capabilities.add), drop_capabilities=list(capabilities.drop)
    )


def _selinux(options: SELinuxOptions) -> cri.SeLinuxOption:
    return cri.SeLinuxOption(
        user=options.user, role=options.role, type=options.type, level=options.level
    )


def _fs_groups(context: PodSecurityContext) -> tuple[int, ...]:
    return () if context.fs_group is None else (context.fs_group,)


def _groups_policy(context: PodSecurityContext) -> cri.SupplementalGroupsPolicy:
    policy = context.supplemental_groups_policy or SupplementalGroupsPolicy.MERGE
    if policy not in _GROUPS_POLICIES:
        raise ConfigError(f"unsupported supplementalGroupsPolicy: {policy}")
    return _GROUPS_POLICIES[SupplementalGroupsPolicy(policy)]


def _is_privileged(container: Container) -> bool:
    return container.security_context is not None and bool(container.security_context.privileged)


def _first_set(own: int | None, inherited: int | None) -> int | None:
    return inherited if own is None else own
