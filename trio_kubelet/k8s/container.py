"""Containers: what to run, with which environment, ports and mounts."""

from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory, wire
from trio_kubelet.k8s.probes import Lifecycle, Probe
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.resources import ContainerResizePolicy, ResourceRequirements
from trio_kubelet.k8s.security import SecurityContext


class TerminationMessagePolicy(StrEnum):
    """The source of the termination message."""

    FILE = "File"
    FALLBACK_TO_LOGS_ON_ERROR = "FallbackToLogsOnError"


class Protocol(StrEnum):
    """The transport protocol of a port."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"


class ContainerRestartPolicy(StrEnum):
    """True if one container restarts; `Always` on an init container makes it a sidecar."""

    ALWAYS = "Always"
    NEVER = "Never"
    ON_FAILURE = "OnFailure"


class ContainerRestartRuleAction(StrEnum):
    """The effect of a restart rule that matches."""

    RESTART = "Restart"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"


class ContainerRestartRuleOnExitCodesOperator(StrEnum):
    """Comparisons of an exit code with the values of a rule."""

    IN = "In"
    NOT_IN = "NotIn"


class MountPropagationMode(StrEnum):
    """The directions in which mounts cross between host and container."""

    NONE = "None"
    HOST_TO_CONTAINER = "HostToContainer"
    BIDIRECTIONAL = "Bidirectional"


class RecursiveReadOnlyMode(StrEnum):
    """True if mounts below a read-only mount are read-only, too."""

    DISABLED = "Disabled"
    IF_POSSIBLE = "IfPossible"
    ENABLED = "Enabled"


@frozen(kw_only=True, repr=False, eq=False)
class ContainerPort(ApiType):
    """A port of the container; `host_port` opens it on the node."""

    name: str = ""
    container_port: Mandatory[Int32] = 0
    host_ip: str = field(default="", metadata=wire("hostIP"))
    host_port: Int32 | None = None
    protocol: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ObjectFieldSelector(ApiType):
    """A field of the pod itself, as `metadata.name` or `status.podIP`."""

    api_version: str = ""
    field_path: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class ResourceFieldSelector(ApiType):
    """A limit or request of a container, divided by `divisor` and rounded up."""

    container_name: str = ""
    divisor: Quantity | None = None
    resource: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class ConfigMapKeySelector(ApiType):
    """One key of a config map."""

    name: str = ""
    key: Mandatory[str] = ""
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SecretKeySelector(ApiType):
    """One key of a secret."""

    name: str = ""
    key: Mandatory[str] = ""
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class FileKeySelector(ApiType):
    """One key of an env file on a volume, read by the node when the container starts."""

    key: Mandatory[str] = ""
    path: Mandatory[str] = ""
    optional: bool | None = None
    volume_name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class EnvVarSource(ApiType):
    """The source of a variable's value. Exactly one is set."""

    config_map_key_ref: ConfigMapKeySelector | None = None
    field_ref: ObjectFieldSelector | None = None
    file_key_ref: FileKeySelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    secret_key_ref: SecretKeySelector | None = None


@frozen(kw_only=True, repr=False, eq=False)
class EnvVar(ApiType):
    """A variable; `$(NAME)` in its value is expanded from those before it."""

    name: Mandatory[str] = ""
    value: str = ""
    value_from: EnvVarSource | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ConfigMapEnvSource(ApiType):
    """A config map whose keys all become variables."""

    name: str = ""
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SecretEnvSource(ApiType):
    """A secret whose keys all become variables."""

    name: str = ""
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class EnvFromSource(ApiType):
    """A source of many variables. Exactly one is set."""

    config_map_ref: ConfigMapEnvSource | None = None
    prefix: str = ""
    secret_ref: SecretEnvSource | None = None


@frozen(kw_only=True, repr=False, eq=False)
class VolumeMount(ApiType):
    """The mount of a volume of the pod in the container."""

    name: Mandatory[str] = ""
    mount_path: Mandatory[str] = ""
    mount_propagation: str = ""
    read_only: bool | None = None
    recursive_read_only: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class VolumeDevice(ApiType):
    """The device that a raw block volume of the pod appears as."""

    name: Mandatory[str] = ""
    device_path: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class ContainerRestartRuleOnExitCodes(ApiType):
    """The exit codes that a restart rule is for."""

    operator: Mandatory[str] = ""
    values: tuple[Int32, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class ContainerRestartRule(ApiType):
    """A rule that is tried, in order, before the restart policy of the container."""

    action: Mandatory[str] = ""
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Container(ApiType):
    """One container of a pod. An empty `command` means the entry point of the image.

    `restart_policy` is the container's own; empty means that the pod's holds.
    """

    name: Mandatory[str] = ""
    image: str = ""
    image_pull_policy: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    ports: tuple[ContainerPort, ...] = ()

    resources: ResourceRequirements | None = None
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    security_context: SecurityContext | None = None

    lifecycle: Lifecycle | None = None
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    restart_policy: str = ""
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()

    termination_message_path: str = ""
    termination_message_policy: str = ""
    stdin: bool | None = None
    stdin_once: bool | None = None
    tty: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class EphemeralContainer(Container):
    """A container put into a running pod for debugging; never restarted."""

    target_container_name: str = ""
