"""Persistent volumes, which outlive pods, and the sources that only they have.

A volume says which claim has it (`claim_ref`), the claim which volume it has (`volume_name`).
"""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory, wire
from trio_kubelet.k8s.legacy_volumes import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    FCVolumeSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource,
    QuobyteVolumeSource,
    VsphereVirtualDiskVolumeSource,
)
from trio_kubelet.k8s.meta import ObjectMeta, ObjectReference
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.scheduling import NodeSelector
from trio_kubelet.k8s.time import Time
from trio_kubelet.k8s.volumes import HostPathVolumeSource, NFSVolumeSource


@frozen(kw_only=True, repr=False, eq=False)
class SecretReference(ApiType):
    """A secret in any namespace."""

    name: str = ""
    namespace: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class LocalVolumeSource(ApiType):
    """A folder or a block device of one node."""

    fs_type: str = ""
    path: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class CSIPersistentVolumeSource(ApiType):
    """A volume of a CSI driver."""

    controller_expand_secret_ref: SecretReference | None = None
    controller_publish_secret_ref: SecretReference | None = None
    driver: Mandatory[str] = ""
    fs_type: str = ""
    node_expand_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    node_stage_secret_ref: SecretReference | None = None
    read_only: bool | None = None
    volume_attributes: Mapping[str, str] = field(factory=dict)
    volume_handle: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class FlexPersistentVolumeSource(ApiType):
    """A volume by an executable driver on the node."""

    driver: Mandatory[str] = ""
    fs_type: str = ""
    options: Mapping[str, str] = field(factory=dict)
    read_only: bool | None = None
    secret_ref: SecretReference | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ISCSIPersistentVolumeSource(ApiType):
    """A disk of an iSCSI target."""

    chap_auth_discovery: bool | None = None
    chap_auth_session: bool | None = None
    fs_type: str = ""
    initiator_name: str = ""
    iqn: Mandatory[str] = ""
    iscsi_interface: str = ""
    lun: Mandatory[Int32] = 0
    portals: tuple[str, ...] = ()
    read_only: bool | None = None
    secret_ref: SecretReference | None = None
    target_portal: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class AzureFilePersistentVolumeSource(ApiType):
    """An Azure file share; served by its CSI driver."""

    read_only: bool | None = None
    secret_name: Mandatory[str] = ""
    secret_namespace: str = ""
    share_name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class CephFSPersistentVolumeSource(ApiType):
    """A CephFS folder; no longer mounted."""

    monitors: Mandatory[tuple[str, ...]] = ()
    path: str = ""
    read_only: bool | None = None
    secret_file: str = ""
    secret_ref: SecretReference | None = None
    user: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class CinderPersistentVolumeSource(ApiType):
    """An OpenStack disk; served by its CSI driver."""

    fs_type: str = ""
    read_only: bool | None = None
    secret_ref: SecretReference | None = None
    volume_id: Mandatory[str] = field(default="", metadata=wire("volumeID"))


@frozen(kw_only=True, repr=False, eq=False)
class GlusterfsPersistentVolumeSource(ApiType):
    """A Gluster volume; no longer mounted."""

    endpoints: Mandatory[str] = ""
    endpoints_namespace: str = ""
    path: Mandatory[str] = ""
    read_only: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class RBDPersistentVolumeSource(ApiType):
    """A Ceph block device; no longer mounted."""

    fs_type: str = ""
    image: Mandatory[str] = ""
    keyring: str = ""
    monitors: Mandatory[tuple[str, ...]] = ()
    pool: str = ""
    read_only: bool | None = None
    secret_ref: SecretReference | None = None
    user: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ScaleIOPersistentVolumeSource(ApiType):
    """A ScaleIO volume; no longer mounted."""

    fs_type: str = ""
    gateway: Mandatory[str] = ""
    protection_domain: str = ""
    read_only: bool | None = None
    secret_ref: Mandatory[SecretReference] = field(factory=SecretReference)
    ssl_enabled: bool | None = None
    storage_mode: str = ""
    storage_pool: str = ""
    system: Mandatory[str] = ""
    volume_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class StorageOSPersistentVolumeSource(ApiType):
    """A StorageOS volume; no longer mounted."""

    fs_type: str = ""
    read_only: bool | None = None
    secret_ref: ObjectReference | None = None
    volume_name: str = ""
    volume_namespace: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class VolumeNodeAffinity(ApiType):
    """The nodes that a volume can be used on."""

    required: NodeSelector | None = None


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeSpec(ApiType):
    """The source of a volume, of which exactly one is set, and the claim that has it."""

    access_modes: tuple[str, ...] = ()
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    azure_file: AzureFilePersistentVolumeSource | None = None
    capacity: Mapping[str, Quantity] = field(factory=dict)
    cephfs: CephFSPersistentVolumeSource | None = None
    cinder: CinderPersistentVolumeSource | None = None
    claim_ref: ObjectReference | None = None
    csi: CSIPersistentVolumeSource | None = None
    fc: FCVolumeSource | None = None
    flex_volume: FlexPersistentVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    glusterfs: GlusterfsPersistentVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    iscsi: ISCSIPersistentVolumeSource | None = None
    local: LocalVolumeSource | None = None
    mount_options: tuple[str, ...] = ()
    nfs: NFSVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None
    persistent_volume_reclaim_policy: str = ""
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    rbd: RBDPersistentVolumeSource | None = None
    scale_io: ScaleIOPersistentVolumeSource | None = field(default=None, metadata=wire("scaleIO"))
    storage_class_name: str = ""
    storageos: StorageOSPersistentVolumeSource | None = None
    volume_attributes_class_name: str | None = None
    volume_mode: str = ""
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeStatus(ApiType):
    """The control plane's account of a volume."""

    last_phase_transition_time: Time | None = None
    message: str = ""
    phase: str = ""
    reason: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolume(ApiType):
    """A volume of the cluster that outlives pods."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: PersistentVolumeSpec = field(factory=PersistentVolumeSpec)
    status: PersistentVolumeStatus = field(factory=PersistentVolumeStatus)
