"""Volume sources from before CSI.

The API still accepts them. Of these flexVolume, iscsi and fc have plugins on the node; pods that
mount another one wait.
"""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory, wire
from trio_kubelet.k8s.meta import LocalObjectReference


@frozen(kw_only=True, repr=False, eq=False)
class ISCSIVolumeSource(ApiType):
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
    secret_ref: LocalObjectReference | None = None
    target_portal: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class FCVolumeSource(ApiType):
    """A Fibre Channel disk, by target and LUN or by WWID."""

    fs_type: str = ""
    lun: Int32 | None = None
    read_only: bool | None = None
    target_wwns: tuple[str, ...] = field(default=(), metadata=wire("targetWWNs"))
    wwids: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class FlexVolumeSource(ApiType):
    """A volume by an executable driver on the node."""

    driver: Mandatory[str] = ""
    fs_type: str = ""
    options: Mapping[str, str] = field(factory=dict)
    read_only: bool | None = None
    secret_ref: LocalObjectReference | None = None


@frozen(kw_only=True, repr=False, eq=False)
class GitRepoVolumeSource(ApiType):
    """A checkout of a repository; Kubernetes 1.36 no longer mounts it."""

    directory: str = ""
    repository: Mandatory[str] = ""
    revision: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class AWSElasticBlockStoreVolumeSource(ApiType):
    """An EBS disk; served by its CSI driver."""

    fs_type: str = ""
    partition: Int32 | None = None
    read_only: bool | None = None
    volume_id: Mandatory[str] = field(default="", metadata=wire("volumeID"))


@frozen(kw_only=True, repr=False, eq=False)
class AzureDiskVolumeSource(ApiType):
    """An Azure disk; served by its CSI driver."""

    kind: str = ""
    caching_mode: str = ""
    disk_name: Mandatory[str] = ""
    disk_uri: Mandatory[str] = field(default="", metadata=wire("diskURI"))
    fs_type: str = ""
    read_only: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class AzureFileVolumeSource(ApiType):
    """An Azure file share; served by its CSI driver."""

    read_only: bool | None = None
    secret_name: Mandatory[str] = ""
    share_name: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class CephFSVolumeSource(ApiType):
    """A CephFS folder; no longer mounted."""

    path: str = ""
    monitors: Mandatory[tuple[str, ...]] = ()
    read_only: bool | None = None
    secret_file: str = ""
    secret_ref: LocalObjectReference | None = None
    user: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class CinderVolumeSource(ApiType):
    """An OpenStack disk; served by its CSI driver."""

    fs_type: str = ""
    read_only: bool | None = None
    secret_ref: LocalObjectReference | None = None
    volume_id: Mandatory[str] = field(default="", metadata=wire("volumeID"))


@frozen(kw_only=True, repr=False, eq=False)
class FlockerVolumeSource(ApiType):
    """A Flocker dataset; no longer mounted."""

    dataset_name: str = ""
    dataset_uuid: str = field(default="", metadata=wire("datasetUUID"))


@frozen(kw_only=True, repr=False, eq=False)
class GCEPersistentDiskVolumeSource(ApiType):
    """A Google disk; served by its CSI driver."""

    fs_type: str = ""
    partition: Int32 | None = None
    pd_name: Mandatory[str] = ""
    read_only: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class GlusterfsVolumeSource(ApiType):
    """A Gluster volume; no longer mounted."""

    path: Mandatory[str] = ""
    endpoints: Mandatory[str] = ""
    read_only: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class PhotonPersistentDiskVolumeSource(ApiType):
    """A Photon disk; no longer mounted."""

    fs_type: str = ""
    pd_id: Mandatory[str] = field(default="", metadata=wire("pdID"))


@frozen(kw_only=True, repr=False, eq=False)
class PortworxVolumeSource(ApiType):
    """A Portworx volume; served by its CSI driver."""

    fs_type: str = ""
    read_only: bool | None = None
    volume_id: Mandatory[str] = field(default="", metadata=wire("volumeID"))


@frozen(kw_only=True, repr=False, eq=False)
class QuobyteVolumeSource(ApiType):
    """A Quobyte volume; no longer mounted."""

    group: str = ""
    read_only: bool | None = None
    registry: Mandatory[str] = ""
    tenant: str = ""
    user: str = ""
    volume: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class RBDVolumeSource(ApiType):
    """A Ceph block device; no longer mounted."""

    image: Mandatory[str] = ""
    monitors: Mandatory[tuple[str, ...]] = ()
    fs_type: str = ""
    keyring: str = ""
    pool: str = ""
    read_only: bool | None = None
    secret_ref: LocalObjectReference | None = None
    user: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class ScaleIOVolumeSource(ApiType):
    """A ScaleIO volume; no longer mounted."""

    fs_type: str = ""
    gateway: Mandatory[str] = ""
    protection_domain: str = ""
    read_only: bool | None = None
    secret_ref: Mandatory[LocalObjectReference] = field(factory=LocalObjectReference)
    ssl_enabled: bool | None = None
    storage_mode: str = ""
    storage_pool: str = ""
    system: Mandatory[str] = ""
    volume_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class StorageOSVolumeSource(ApiType):
    """A StorageOS volume; no longer mounted."""

    fs_type: str = ""
    read_only: bool | None = None
    secret_ref: LocalObjectReference | None = None
    volume_name: str = ""
    volume_namespace: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class VsphereVirtualDiskVolumeSource(ApiType):
    """A vSphere disk; served by its CSI driver."""

    fs_type: str = ""
    storage_policy_id: str = field(default="", metadata=wire("storagePolicyID"))
    storage_policy_name: str = ""
    volume_path: Mandatory[str] = ""
