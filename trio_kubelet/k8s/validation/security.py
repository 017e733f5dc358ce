"""Security contexts of pods and containers."""

from collections.abc import Iterator, Mapping

from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    unsupported,
)
from trio_kubelet.k8s.pod import PodSpec
from trio_kubelet.k8s.security import (
    AppArmorProfile,
    AppArmorProfileType,
    PodFSGroupChangePolicy,
    PodSELinuxChangePolicy,
    ProcMountType,
    SeccompProfile,
    SeccompProfileType,
    SecurityContext,
    SupplementalGroupsPolicy,
)
from trio_kubelet.k8s.validation import formats
from trio_kubelet.k8s.validation.windows import check_windows_options

LONGEST_APPARMOR_PROFILE_BYTES = 4095
_SYSTEM_ADMIN = "CAP_SYS_ADMIN"
_NETWORK_SYSCTLS = ("net.",)
_IPC_SYSCTLS = ("kernel.shm", "kernel.msg", "fs.mqueue.")
_IPC_SYSCTL = "kernel.sem"


def check_pod_security(spec: PodSpec, path: str) -> Iterator[FieldError]:
    """Check the security context of a pod, and its use of the node's namespaces."""
    yield from _check_host_namespaces(spec)
    context = spec.security_context
    if context is None:
        return
    yield from _check_ids(
        {
            "fsGroup": context.fs_group,
            "runAsUser": context.run_as_user,
            "runAsGroup": context.run_as_group,
        },
        path,
    )
    for index, group in enumerate(context.supplemental_groups):
        where = f"{path}.supplementalGroups[{index}]"
        yield from all_invalid(where, group, formats.user_or_group(group))
    yield from _check_sysctls(spec, f"{path}.sysctls")
    choices = {
        "fsGroupChangePolicy": (context.fs_group_change_policy, PodFSGroupChangePolicy),
        "supplementalGroupsPolicy": (context.supplemental_groups_policy, SupplementalGroupsPolicy),
        "seLinuxChangePolicy": (context.se_linux_change_policy, PodSELinuxChangePolicy),
    }
    for name, (value, known) in choices.items():
        if value and value not in list(known):
            yield unsupported(f"{path}.{name}", value, known)
    yield from _check_seccomp(context.seccomp_profile, f"{path}.seccompProfile")
    yield from _check_apparmor(context.app_armor_profile, f"{path}.appArmorProfile")
    yield from check_windows_options(context.windows_options, f"{path}.windowsOptions")


def check_container_security(
    context: SecurityContext | None, host_users: bool, path: str
) -> Iterator[FieldError]:
    """Check the security context of a container."""
    if context is None:
        return
    ids = {"runAsUser": context.run_as_user, "runAsGroup": context.run_as_group}
    yield from _check_ids(ids, path)
    yield from _check_proc_mount(context.proc_mount, host_users, f"{path}.procMount")
    yield from _check_seccomp(context.seccomp_profile, f"{path}.seccompProfile")
    yield from _check_apparmor(context.app_armor_profile, f"{path}.appArmorProfile")
    yield from check_windows_options(context.windows_options, f"{path}.windowsOptions")
    if context.allow_privilege_escalation is not False:
        return
    where = f"{path}.allowPrivilegeEscalation"
    if context.privileged:
        detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        yield invalid(where, False, detail)
    if context.capabilities is not None and _SYSTEM_ADMIN in context.capabilities.add:
        detail = (
            f"cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` {_SYSTEM_ADMIN}"
        )
        yield invalid(where, False, detail)


def _check_ids(ids: Mapping[str, int | None], path: str) -> Iterator[FieldError]:
    for name, value in ids.items():
        if value is not None:
            yield from all_invalid(f"{path}.{name}", value, formats.user_or_group(value))


def _check_proc_mount(mode: str, host_users: bool, path: str) -> Iterator[FieldError]:
    if mode and mode not in list(ProcMountType):
        yield unsupported(path, mode, ProcMountType)
    if mode == ProcMountType.UNMASKED and host_users:
        yield invalid(path, mode, "`hostUsers` must be false to use `Unmasked`")


def _check_host_namespaces(spec: PodSpec) -> Iterator[FieldError]:
    if spec.share_process_namespace and spec.host_pid:
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid("spec.shareProcessNamespace", True, detail)
    if spec.host_users is not False:
        return
    # The host's network is a feature that a node may have, and a matter of admission.
    shared = {"hostPID": spec.host_pid, "hostIPC": spec.host_ipc}
    for name, is_shared in shared.items():
        if is_shared:
            yield forbidden(f"spec.{name}", "when `hostUsers` is false")


def _check_sysctls(spec: PodSpec, path: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    sysctls = spec.security_context.sysctls if spec.security_context is not None else ()
    for index, sysctl in enumerate(sysctls):
        where = f"{path}[{index}].name"
        if not sysctl.name:
            yield required(where)
            continue
        yield from all_invalid(where, sysctl.name, formats.sysctl_name(sysctl.name))
        name = sysctl.name.replace("/", ".")
        if name in seen:
            yield duplicate(where, sysctl.name)
        seen.add(name)
        if spec.host_network and name.startswith(_NETWORK_SYSCTLS):
            yield invalid(where, sysctl.name, "may not be specified when 'hostNetwork' is true")
        if spec.host_ipc and (name.startswith(_IPC_SYSCTLS) or name == _IPC_SYSCTL):
            yield invalid(where, sysctl.name, "may not be specified when 'hostIPC' is true")


def _check_seccomp(profile: SeccompProfile | None, path: str) -> Iterator[FieldError]:
    if profile is None:
        return
    if not profile.type:
        yield required(f"{path}.type", "type is required when seccompProfile is set")
    elif profile.type not in list(SeccompProfileType):
        yield unsupported(f"{path}.type", profile.type, SeccompProfileType)
    where, local = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != SeccompProfileType.LOCALHOST:
        if local is not None:
            yield invalid(where, local, "can only be set when seccomp type is Localhost")
    elif not local:
        yield required(where, "must be set when seccomp type is Localhost")
    else:
        yield from all_invalid(where, local, formats.relative_path(local))


def _check_apparmor(profile: AppArmorProfile | None, path: str) -> Iterator[FieldError]:
    if profile is None:
        return
    if not profile.type:
        yield required(f"{path}.type", "type is required when appArmorProfile is set")
    elif profile.type not in list(AppArmorProfileType):
        yield unsupported(f"{path}.type", profile.type, AppArmorProfileType)
    where, local = f"{path}.localhostProfile", profile.localhost_profile
    if profile.type != AppArmorProfileType.LOCALHOST:
        if local is not None:
            yield invalid(where, local, "can only be set when AppArmor type is Localhost")
    elif not local or not local.strip():
        yield required(where, "must be set when AppArmor type is Localhost")
    elif local != local.strip():
        yield invalid(where, local, "must not be padded with whitespace")
    elif len(local.encode()) > LONGEST_APPARMOR_PROFILE_BYTES:
        yield too_long(where, LONGEST_APPARMOR_PROFILE_BYTES)
