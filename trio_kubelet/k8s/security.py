"""Under which identity and with which rights containers run."""

from enum import StrEnum

from attrs import frozen

from trio_kubelet.k8s.base import ApiType, Int64, Mandatory


class ProcMountType(StrEnum):
    """The /proc that a container sees."""

    DEFAULT = "Default"
    UNMASKED = "Unmasked"


class SeccompProfileType(StrEnum):
    """The source of a seccomp profile."""

    RUNTIME_DEFAULT = "RuntimeDefault"
    UNCONFINED = "Unconfined"
    LOCALHOST = "Localhost"


class AppArmorProfileType(StrEnum):
    """The source of an AppArmor profile."""

    RUNTIME_DEFAULT = "RuntimeDefault"
    UNCONFINED = "Unconfined"
    LOCALHOST = "Localhost"


class PodFSGroupChangePolicy(StrEnum):
    """The occasions on which the ownership of a volume is changed to fsGroup."""

    ALWAYS = "Always"
    ON_ROOT_MISMATCH = "OnRootMismatch"


class SupplementalGroupsPolicy(StrEnum):
    """True if the groups that the image gives its user count."""

    MERGE = "Merge"
    STRICT = "Strict"


class PodSELinuxChangePolicy(StrEnum):
    """The ways to change the SELinux label of a volume."""

    RECURSIVE = "Recursive"
    MOUNT_OPTION = "MountOption"


@frozen(kw_only=True, repr=False, eq=False)
class SELinuxOptions(ApiType):
    """The four parts of an SELinux label."""

    type: str = ""
    level: str = ""
    role: str = ""
    user: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class SeccompProfile(ApiType):
    """A seccomp profile; `localhost_profile` is relative to the seccomp folder of the node."""

    type: Mandatory[str] = ""
    localhost_profile: str | None = None


@frozen(kw_only=True, repr=False, eq=False)
class AppArmorProfile(ApiType):
    """An AppArmor profile; `localhost_profile` is the name of one loaded on the node."""

    type: Mandatory[str] = ""
    localhost_profile: str | None = None


@frozen(kw_only=True, repr=False, eq=False)
class WindowsSecurityContextOptions(ApiType):
    """Settings for Windows; a Linux node only carries them along."""

    gmsa_credential_spec: str | None = None
    gmsa_credential_spec_name: str | None = None
    host_process: bool | None = None
    run_as_user_name: str | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Capabilities(ApiType):
    """Linux capabilities on top of, or taken from, the runtime's default set."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class Sysctl(ApiType):
    """A kernel parameter of the pod's namespaces."""

    name: Mandatory[str] = ""
    value: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodSecurityContext(ApiType):
    """Security settings for the pod and its volumes; a container's own win over them."""

    run_as_user: Int64 | None = None
    run_as_group: Int64 | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: tuple[Int64, ...] = ()
    supplemental_groups_policy: str = ""
    fs_group: Int64 | None = None
    fs_group_change_policy: str = ""

    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_options: SELinuxOptions | None = None
    se_linux_change_policy: str = ""
    sysctls: tuple[Sysctl, ...] = ()
    windows_options: WindowsSecurityContextOptions | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SecurityContext(ApiType):
    """Security settings of one container; they win over the pod's."""

    run_as_user: Int64 | None = None
    run_as_group: Int64 | None = None
    run_as_non_root: bool | None = None

    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities | None = None
    read_only_root_filesystem: bool | None = None
    proc_mount: str = ""

    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None
