"""Volumes of a pod. Those of the old in-tree drivers are in `legacy_volumes.py`."""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory, wire
from trio_kubelet.k8s.claims import PersistentVolumeClaimTemplate
from trio_kubelet.k8s.container import ObjectFieldSelector, ResourceFieldSelector
from trio_kubelet.k8s.legacy_volumes import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    AzureFileVolumeSource,
    CephFSVolumeSource,
    CinderVolumeSource,
    FCVolumeSource,
    FlexVolumeSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    GitRepoVolumeSource,
    GlusterfsVolumeSource,
    ISCSIVolumeSource,
    PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource,
    QuobyteVolumeSource,
    RBDVolumeSource,
    ScaleIOVolumeSource,
    StorageOSVolumeSource,
    VsphereVirtualDiskVolumeSource,
)
from trio_kubelet.k8s.meta import LabelSelector, LocalObjectReference
from trio_kubelet.k8s.quantity import Quantity


class HostPathType(StrEnum):
    """The kind of file that must be at the path, or is made there; empty: no check."""

    UNSET = ""
    DIRECTORY_OR_CREATE = "DirectoryOrCreate"
    DIRECTORY = "Directory"
    FILE_OR_CREATE = "FileOrCreate"
    FILE = "File"
    SOCKET = "Socket"
    CHAR_DEVICE = "CharDevice"
    BLOCK_DEVICE = "BlockDevice"


class StorageMedium(StrEnum):
    """The medium of an emptyDir; huge pages of one size are `HugePages-<size>`."""

    DEFAULT = ""
    MEMORY = "Memory"
    HUGE_PAGES = "HugePages"


@frozen(kw_only=True, repr=False, eq=False)
class EmptyDirVolumeSource(ApiType):
    """A folder that lives as long as the pod."""

    medium: str = ""
    size_limit: Quantity | None = None


@frozen(kw_only=True, repr=False, eq=False)
class HostPathVolumeSource(ApiType):
    """A file or folder of the node."""

    type: str | None = None
    path: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class KeyToPath(ApiType):
    """The file that a key becomes. `mode` is its permission bits, as a number."""

    key: Mandatory[str] = ""
    path: Mandatory[str] = ""
    mode: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ConfigMapVolumeSource(ApiType):
    """The keys of a config map as files."""

    items: tuple[KeyToPath, ...] = ()
    name: str = ""
    default_mode: Int32 | None = None
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SecretVolumeSource(ApiType):
    """The keys of a secret as files."""

    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None
    secret_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class DownwardAPIVolumeFile(ApiType):
    """A field or a resource of the pod as a file."""

    path: Mandatory[str] = ""
    field_ref: ObjectFieldSelector | None = None
    mode: Int32 | None = None
    resource_field_ref: ResourceFieldSelector | None = None


@frozen(kw_only=True, repr=False, eq=False)
class DownwardAPIVolumeSource(ApiType):
    """Fields of the pod as files."""

    items: tuple[DownwardAPIVolumeFile, ...] = ()
    default_mode: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ConfigMapProjection(ApiType):
    """A config map within a projected volume."""

    items: tuple[KeyToPath, ...] = ()
    name: str = ""
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SecretProjection(ApiType):
    """A secret within a projected volume."""

    items: tuple[KeyToPath, ...] = ()
    name: str = ""
    optional: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class DownwardAPIProjection(ApiType):
    """Fields of the pod within a projected volume."""

    items: tuple[DownwardAPIVolumeFile, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class ServiceAccountTokenProjection(ApiType):
    """A token for the pod's service account that the node keeps fresh."""

    path: Mandatory[str] = ""
    audience: str = ""
    expiration_seconds: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ClusterTrustBundleProjection(ApiType):
    """Trust anchors, by name or by signer and labels."""

    name: str = ""
    path: Mandatory[str] = ""
    label_selector: LabelSelector | None = None
    optional: bool | None = None
    signer_name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class PodCertificateProjection(ApiType):
    """A key and certificate for the pod that the node requests and keeps fresh."""

    certificate_chain_path: str = ""
    credential_bundle_path: str = ""
    key_path: str = ""
    key_type: Mandatory[str] = ""
    max_expiration_seconds: Int32 | None = None
    signer_name: Mandatory[str] = ""
    user_annotations: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class VolumeProjection(ApiType):
    """One source of a projected volume. Exactly one is set."""

    cluster_trust_bundle: ClusterTrustBundleProjection | None = None
    config_map: ConfigMapProjection | None = None
    downward_api: DownwardAPIProjection | None = field(default=None, metadata=wire("downwardAPI"))
    pod_certificate: PodCertificateProjection | None = None
    secret: SecretProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ProjectedVolumeSource(ApiType):
    """Several sources in one folder."""

    default_mode: Int32 | None = None
    sources: tuple[VolumeProjection, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class PersistentVolumeClaimVolumeSource(ApiType):
    """The volume that a claim of the same namespace is bound to."""

    claim_name: Mandatory[str] = ""
    read_only: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class EphemeralVolumeSource(ApiType):
    """A claim made for this pod, named `<pod>-<volume>`."""

    volume_claim_template: PersistentVolumeClaimTemplate | None = None


@frozen(kw_only=True, repr=False, eq=False)
class CSIVolumeSource(ApiType):
    """A volume that a CSI driver makes for this pod alone."""

    driver: Mandatory[str] = ""
    fs_type: str = ""
    node_publish_secret_ref: LocalObjectReference | None = None
    read_only: bool | None = None
    volume_attributes: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class ImageVolumeSource(ApiType):
    """The content of an image, read-only."""

    pull_policy: str = ""
    reference: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class NFSVolumeSource(ApiType):
    """An exported folder of an NFS server."""

    path: Mandatory[str] = ""
    server: Mandatory[str] = ""
    read_only: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Volume(ApiType):
    """A volume of a pod: a name and exactly one source."""

    name: Mandatory[str] = ""
    image: ImageVolumeSource | None = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    azure_file: AzureFileVolumeSource | None = None
    cephfs: CephFSVolumeSource | None = None
    cinder: CinderVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = field(default=None, metadata=wire("downwardAPI"))
    empty_dir: EmptyDirVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    fc: FCVolumeSource | None = None
    flex_volume: FlexVolumeSource | None = None
    flocker: FlockerVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    git_repo: GitRepoVolumeSource | None = None
    glusterfs: GlusterfsVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    iscsi: ISCSIVolumeSource | None = None
    nfs: NFSVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    photon_persistent_disk: PhotonPersistentDiskVolumeSource | None = None
    portworx_volume: PortworxVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    quobyte: QuobyteVolumeSource | None = None
    rbd: RBDVolumeSource | None = None
    scale_io: ScaleIOVolumeSource | None = field(default=None, metadata=wire("scaleIO"))
    secret: SecretVolumeSource | None = None
    storageos: StorageOSVolumeSource | None = None
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None
