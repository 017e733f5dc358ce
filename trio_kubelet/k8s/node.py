"""The node: what it can hold (`status`), and what the cluster says about it (`spec`).

The agent creates the object or adopts it and owns its status. Labels and taints are shared with
the cluster's administrators and controllers; admission reads them.
"""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory, wire
from trio_kubelet.k8s.meta import ObjectMeta
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.time import Time

OS_LABEL = "kubernetes.io/os"

DIRECT_WEBSOCKETS = "ExtendWebSocketsToKubelet"
RESIZE_OF_PODS = "InPlacePodLevelResourcesVerticalScaling"
RESIZE_OF_INIT_CONTAINERS = "InPlacePodVerticalScalingInitContainers"
RESTART_ALL_CONTAINERS = "RestartAllContainersOnContainerExits"
USER_NAMESPACES_WITH_HOST_NETWORK = "UserNamespacesHostNetworkSupport"
"""Features that nodes declare (status.declaredFeatures), and gates of the same names."""
ARCH_LABEL = "kubernetes.io/arch"


class NodeConditionType(StrEnum):
    """The conditions of a node that are known to all; the first four are the agent's."""

    READY = "Ready"
    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"
    NETWORK_UNAVAILABLE = "NetworkUnavailable"


class NodeAddressType(StrEnum):
    """The kinds of names and addresses."""

    HOSTNAME = "Hostname"
    INTERNAL_IP = "InternalIP"
    EXTERNAL_IP = "ExternalIP"
    INTERNAL_DNS = "InternalDNS"
    EXTERNAL_DNS = "ExternalDNS"


@frozen(kw_only=True, repr=False, eq=False)
class Taint(ApiType):
    """A mark that keeps pods away from the node which do not tolerate it."""

    key: Mandatory[str] = ""
    value: str = ""
    effect: Mandatory[str] = ""
    time_added: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ConfigMapNodeConfigSource(ApiType):
    """Configuration out of a config map (API: deprecated, kept for what others wrote)."""

    kubelet_config_key: Mandatory[str] = ""
    name: Mandatory[str] = ""
    namespace: Mandatory[str] = ""
    resource_version: str = ""
    uid: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class NodeConfigSource(ApiType):
    """The source of the node's configuration (API: deprecated)."""

    config_map: ConfigMapNodeConfigSource | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeConfigStatus(ApiType):
    """The configuration that was used (API: deprecated)."""

    active: NodeConfigSource | None = None
    assigned: NodeConfigSource | None = None
    error: str = ""
    last_known_good: NodeConfigSource | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeSpec(ApiType):
    """The cluster's decisions about the node."""

    config_source: NodeConfigSource | None = None
    external_id: str = field(default="", metadata=wire("externalID"))
    pod_cidr: str = field(default="", metadata=wire("podCIDR"))
    pod_cidrs: tuple[str, ...] = field(default=(), metadata=wire("podCIDRs"))
    provider_id: str = field(default="", metadata=wire("providerID"))
    taints: tuple[Taint, ...] = ()
    unschedulable: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeAddress(ApiType):
    """A name or an address of the node."""

    type: Mandatory[str] = ""
    address: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class NodeCondition(ApiType):
    """One fact about the node's health, with the time it was last heard of and last changed."""

    type: Mandatory[str] = ""
    status: Mandatory[str] = ""
    last_heartbeat_time: Time | None = None
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ContainerImage(ApiType):
    """An image on the node, with all its names."""

    names: tuple[str, ...] = ()
    size_bytes: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class DaemonEndpoint(ApiType):
    """The port where a daemon listens."""

    port: Mandatory[Int32] = field(default=0, metadata=wire("Port"))


@frozen(kw_only=True, repr=False, eq=False)
class NodeDaemonEndpoints(ApiType):
    """The port of the agent's own server."""

    kubelet_endpoint: DaemonEndpoint | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeSwapStatus(ApiType):
    """The swap that the node has, in bytes."""

    capacity: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeSystemInfo(ApiType):
    """The machine, its operating system and the versions of what runs it."""

    machine_id: Mandatory[str] = field(default="", metadata=wire("machineID"))
    system_uuid: Mandatory[str] = field(default="", metadata=wire("systemUUID"))
    boot_id: Mandatory[str] = field(default="", metadata=wire("bootID"))
    kernel_version: Mandatory[str] = ""
    os_image: Mandatory[str] = ""
    container_runtime_version: Mandatory[str] = ""
    kubelet_version: Mandatory[str] = ""
    kube_proxy_version: Mandatory[str] = ""
    operating_system: Mandatory[str] = ""
    architecture: Mandatory[str] = ""
    swap: NodeSwapStatus | None = None


@frozen(kw_only=True, repr=False, eq=False)
class AttachedVolume(ApiType):
    """A volume that a controller has attached to the node."""

    name: Mandatory[str] = ""
    device_path: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class NodeRuntimeHandlerFeatures(ApiType):
    """The features of a runtime handler."""

    recursive_read_only_mounts: bool | None = None
    user_namespaces: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeRuntimeHandler(ApiType):
    """A runtime handler; the one without a name is the default."""

    name: str = ""
    features: NodeRuntimeHandlerFeatures | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeFeatures(ApiType):
    """The features that the runtime has whatever the handler."""

    supplemental_groups_policy: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class NodeStatus(ApiType):
    """The node's resources, its state, and the system that runs it.

    `allocatable` is what pods may ask for in all: `capacity` less what is reserved.
    """

    capacity: Mapping[str, Quantity] = field(factory=dict)
    allocatable: Mapping[str, Quantity] = field(factory=dict)
    phase: str = ""
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    daemon_endpoints: NodeDaemonEndpoints | None = None
    node_info: NodeSystemInfo | None = None
    images: tuple[ContainerImage, ...] = ()
    volumes_in_use: tuple[str, ...] = ()
    volumes_attached: tuple[AttachedVolume, ...] = ()
    config: NodeConfigStatus | None = None
    runtime_handlers: tuple[NodeRuntimeHandler, ...] = ()
    features: NodeFeatures | None = None
    declared_features: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class Node(ApiType):
    """A node of the cluster. `metadata`, `spec` and `status` are always there."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: NodeSpec = field(factory=NodeSpec)
    status: NodeStatus = field(factory=NodeStatus)
