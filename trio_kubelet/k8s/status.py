"""The node's reports of a pod and its containers."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory, wire
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.resources import ResourceRequirements, ResourceStatus
from trio_kubelet.k8s.time import Time


class PodPhase(StrEnum):
    """The phase of a pod in its life."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


TERMINAL_PHASES = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})
"""A pod in one of them never runs again."""


class PodQOSClass(StrEnum):
    """The class of a pod when the node runs short."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ConditionStatus(StrEnum):
    """The value of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class PodConditionType(StrEnum):
    """Conditions of a pod; readiness gates add others."""

    POD_SCHEDULED = "PodScheduled"
    READY = "Ready"
    INITIALIZED = "Initialized"
    CONTAINERS_READY = "ContainersReady"
    READY_TO_START_CONTAINERS = "PodReadyToStartContainers"
    DISRUPTION_TARGET = "DisruptionTarget"
    RESIZE_PENDING = "PodResizePending"
    RESIZE_IN_PROGRESS = "PodResizeInProgress"
    ALL_CONTAINERS_RESTARTING = "AllContainersRestarting"


@frozen(kw_only=True, repr=False, eq=False)
class PodCondition(ApiType):
    """One thing that is, or is not, true of the pod, since when and why."""

    status: Mandatory[str] = ""
    type: Mandatory[str] = ""
    reason: str = ""
    message: str = ""
    last_probe_time: Time | None = None
    last_transition_time: Time | None = None
    observed_generation: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ContainerStateWaiting(ApiType):
    """A container that was not started yet, or waits to start again."""

    reason: str = ""
    message: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ContainerStateRunning(ApiType):
    """Running."""

    started_at: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ContainerStateTerminated(ApiType):
    """Ended."""

    reason: str = ""
    message: str = ""
    container_id: str = field(default="", metadata=wire("containerID"))
    exit_code: Mandatory[Int32] = 0
    finished_at: Time | None = None
    signal: Int32 | None = None
    started_at: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ContainerState(ApiType):
    """At most one is set; none means waiting."""

    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None
    waiting: ContainerStateWaiting | None = None


@frozen(kw_only=True, repr=False, eq=False)
class LinuxContainerUser(ApiType):
    """The identity that the first process of a container was given."""

    uid: Mandatory[Int64] = 0
    gid: Mandatory[Int64] = 0
    supplemental_groups: tuple[Int64, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class ContainerUser(ApiType):
    """The identity of a container, by operating system."""

    linux: LinuxContainerUser | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ImageVolumeStatus(ApiType):
    """The image, with digest, that an image volume resolved to."""

    image_ref: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class VolumeStatus(ApiType):
    """The result of a volume's mount."""

    image: ImageVolumeStatus | None = None


@frozen(kw_only=True, repr=False, eq=False)
class VolumeMountStatus(ApiType):
    """The mount of a volume as it came out."""

    name: Mandatory[str] = ""
    mount_path: Mandatory[str] = ""
    read_only: bool | None = None
    recursive_read_only: str = ""
    volume_status: VolumeStatus | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ContainerStatus(ApiType):
    """The state of one container.

    `image` and `image_id` are what runs, not what the spec asks for. `resources` is what is
    enforced now, `allocated_resources` what the node has set aside.
    """

    name: Mandatory[str] = ""
    container_id: str = field(default="", metadata=wire("containerID"))
    image: Mandatory[str] = ""
    image_id: Mandatory[str] = field(default="", metadata=wire("imageID"))

    state: ContainerState | None = None
    last_state: ContainerState | None = None
    ready: Mandatory[bool] = False
    started: bool | None = None
    restart_count: Mandatory[Int32] = 0
    stop_signal: str = ""

    resources: ResourceRequirements | None = None
    allocated_resources: Mapping[str, Quantity] = field(factory=dict)
    allocated_resources_status: tuple[ResourceStatus, ...] = ()
    user: ContainerUser | None = None
    volume_mounts: tuple[VolumeMountStatus, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class HostIP(ApiType):
    """An address of the node."""

    ip: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodIP(ApiType):
    """An address of the pod."""

    ip: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodResourceClaimStatus(ApiType):
    """The claim made for an entry of `spec.resourceClaims`."""

    name: Mandatory[str] = ""
    resource_claim_name: str | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ContainerExtendedResourceRequest(ApiType):
    """The request of a claim that backs an extended resource of a container."""

    container_name: Mandatory[str] = ""
    request_name: Mandatory[str] = ""
    resource_name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodExtendedResourceClaimStatus(ApiType):
    """The claim that backs the pod's extended resources."""

    request_mappings: Mandatory[tuple[ContainerExtendedResourceRequest, ...]] = ()
    resource_claim_name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class NodeAllocatableResourceClaimStatus(ApiType):
    """The amounts that a claim takes out of the allocatable resources of the node."""

    containers: tuple[str, ...] = ()
    resource_claim_name: Mandatory[str] = ""
    resources: Mandatory[Mapping[str, Quantity]] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class PodStatus(ApiType):
    """The state of a pod. The node writes it, the spec it only reads."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    start_time: Time | None = None
    observed_generation: Int64 | None = None

    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()

    host_ip: str = field(default="", metadata=wire("hostIP"))
    host_ips: tuple[HostIP, ...] = field(default=(), metadata=wire("hostIPs"))
    pod_ip: str = field(default="", metadata=wire("podIP"))
    pod_ips: tuple[PodIP, ...] = field(default=(), metadata=wire("podIPs"))

    qos_class: str = ""
    resize: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: Mapping[str, Quantity] = field(factory=dict)
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    node_allocatable_resource_claim_statuses: tuple[NodeAllocatableResourceClaimStatus, ...] = ()
    nominated_node_name: str = ""

    def claimed_resources(self, container: str) -> frozenset[str]:
        """The extended resources of a container whose devices the pod's claim has (KEP-5004)."""
        backing = self.extended_resource_claim_status
        mappings = backing.request_mappings if backing is not None else ()
        return frozenset(
            each.resource_name for each in mappings if each.container_name == container
        )
