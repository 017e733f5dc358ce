"""Drivers of the Container Storage Interface, as the API knows them."""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory, wire
from trio_kubelet.k8s.meta import ObjectMeta
from trio_kubelet.k8s.persistent_volumes import PersistentVolumeSpec
from trio_kubelet.k8s.time import Time


@frozen(kw_only=True, repr=False, eq=False)
class CSITokenRequest(ApiType):
    """A token of the pod's service account that a driver wants with each volume."""

    audience: Mandatory[str] = ""
    expiration_seconds: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class CSIDriverSpec(ApiType):
    """The services of cluster and nodes that the volumes of a driver need."""

    attach_required: bool | None = None
    fs_group_policy: str = ""
    node_allocatable_update_period_seconds: Int64 | None = None
    pod_info_on_mount: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None
    requires_republish: bool | None = None
    se_linux_mount: bool | None = None
    service_account_token_in_secrets: bool | None = None
    storage_capacity: bool | None = None
    token_requests: tuple[CSITokenRequest, ...] = ()
    volume_lifecycle_modes: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class CSIDriver(ApiType):
    """A driver of the cluster, which is found under its name on nodes."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[CSIDriverSpec] = field(factory=CSIDriverSpec)


@frozen(kw_only=True, repr=False, eq=False)
class VolumeNodeResources(ApiType):
    """The volumes of a driver that the node can have; None for any number."""

    count: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class CSINodeDriver(ApiType):
    """A driver that is registered on a node, and the node as the driver knows it.

    `topology_keys` are labels of the Node whose values say which volumes can be reached from it.
    """

    name: Mandatory[str] = ""
    node_id: Mandatory[str] = field(default="", metadata=wire("nodeID"))
    topology_keys: tuple[str, ...] = ()
    allocatable: VolumeNodeResources | None = None


@frozen(kw_only=True, repr=False, eq=False)
class CSINodeSpec(ApiType):
    """The drivers of a node."""

    drivers: tuple[CSINodeDriver, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class CSINode(ApiType):
    """The drivers of the node of the same name, for the scheduler and the controllers."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[CSINodeSpec] = field(factory=CSINodeSpec)


@frozen(kw_only=True, repr=False, eq=False)
class VolumeAttachmentError(ApiType):
    """The last failure to attach a volume to a node, or to detach it."""

    error_code: Int32 | None = None
    message: str = ""
    time: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class VolumeAttachmentSource(ApiType):
    """The volume that is to be attached: a persistent one, or what a pod says in its place."""

    inline_volume_spec: PersistentVolumeSpec | None = None
    persistent_volume_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class VolumeAttachmentSpec(ApiType):
    """A volume, the node that it is to be attached to, and the driver that does it."""

    attacher: Mandatory[str] = ""
    node_name: Mandatory[str] = ""
    source: Mandatory[VolumeAttachmentSource] = field(factory=VolumeAttachmentSource)


@frozen(kw_only=True, repr=False, eq=False)
class VolumeAttachmentStatus(ApiType):
    """The driver's account of an attachment; it tells the node `attachment_metadata`."""

    attach_error: VolumeAttachmentError | None = None
    attached: Mandatory[bool] = False
    attachment_metadata: Mapping[str, str] = field(factory=dict)
    detach_error: VolumeAttachmentError | None = None


@frozen(kw_only=True, repr=False, eq=False)
class VolumeAttachment(ApiType):
    """The wish of the cluster to have a volume attached to a node, and what became of it."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[VolumeAttachmentSpec] = field(factory=VolumeAttachmentSpec)
    status: VolumeAttachmentStatus = field(factory=VolumeAttachmentStatus)
