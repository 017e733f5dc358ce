"""The kinds of objects that the agent asks the API server for, and the paths they live under."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from attrs import frozen

from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.certificates import CertificateSigningRequest, ClusterTrustBundle
from trio_kubelet.k8s.claims import PersistentVolumeClaim
from trio_kubelet.k8s.config_data import ConfigMap, Secret
from trio_kubelet.k8s.csi import CSIDriver, CSINode, VolumeAttachment
from trio_kubelet.k8s.event import Event
from trio_kubelet.k8s.lease import Lease
from trio_kubelet.k8s.node import Node
from trio_kubelet.k8s.persistent_volumes import PersistentVolume
from trio_kubelet.k8s.pod import Pod
from trio_kubelet.k8s.resource_claims import AllocatedClaim, ResourceSlice
from trio_kubelet.k8s.reviews import SubjectAccessReview, TokenReview
from trio_kubelet.k8s.runtime_class import RuntimeClass
from trio_kubelet.k8s.service import Service, lighten_service
from trio_kubelet.k8s.service_account import ServiceAccount

T = TypeVar("T", bound=ApiType)


@frozen(kw_only=True)
class Kind(Generic[T]):
    """A kind: its API group ("" is the core), version, plural name in paths, and its class."""

    group: str = ""
    version: str = "v1"
    resource: str
    kind: str
    type: type[T]
    namespaced: bool = True
    lighten: Callable[[dict[str, Any]], None] | None = None
    """Takes what nobody here reads out of the JSON of an object that is listed or watched."""

    @property
    def api_version(self) -> str:
        """Group and version as `apiVersion` has them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL's path of an object, or without a name that of the collection.

        A collection without a namespace is that of all namespaces. Raises ValueError for what
        names nothing: a namespace of what has none, an object that lacks its namespace.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.resource} are in no namespace")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.resource} {name!r}: which namespace?")
        if subresource and not name:
            raise ValueError(f"{self.resource}: the {subresource} of which object?")
        root = f"apis/{self.api_version}" if self.group else f"api/{self.version}"
        scope = ("namespaces", namespace) if namespace else ()
        parts = (*scope, self.resource, name, subresource)
        return "/".join(("", root, *(quote(part, safe=":") for part in parts if part)))


PODS = Kind(resource="pods", kind="Pod", type=Pod)
NODES = Kind(resource="nodes", kind="Node", type=Node, namespaced=False)
EVENTS = Kind(resource="events", kind="Event", type=Event)
SECRETS = Kind(resource="secrets", kind="Secret", type=Secret)
CONFIG_MAPS = Kind(resource="configmaps", kind="ConfigMap", type=ConfigMap)
PERSISTENT_VOLUME_CLAIMS = Kind(
    resource="persistentvolumeclaims", kind="PersistentVolumeClaim", type=PersistentVolumeClaim
)
PERSISTENT_VOLUMES = Kind(
    resource="persistentvolumes", kind="PersistentVolume", type=PersistentVolume, namespaced=False
)
SERVICES = Kind(resource="services", kind="Service", type=Service, lighten=lighten_service)
SERVICE_ACCOUNTS = Kind(resource="serviceaccounts", kind="ServiceAccount", type=ServiceAccount)
LEASES = Kind(group="coordination.k8s.io", resource="leases", kind="Lease", type=Lease)
RUNTIME_CLASSES = Kind(
    group="node.k8s.io",
    resource="runtimeclasses",
    kind="RuntimeClass",
    type=RuntimeClass,
    namespaced=False,
)
CSI_DRIVERS = Kind(
    group="storage.k8s.io",
    resource="csidrivers",
    kind="CSIDriver",
    type=CSIDriver,
    namespaced=False,
)
CSI_NODES = Kind(
    group="storage.k8s.io", resource="csinodes", kind="CSINode", type=CSINode, namespaced=False
)
VOLUME_ATTACHMENTS = Kind(
    group="storage.k8s.io",
    resource="volumeattachments",
    kind="VolumeAttachment",
    type=VolumeAttachment,
    namespaced=False,
)
RESOURCE_CLAIMS = Kind(
    group="resource.k8s.io", resource="resourceclaims", kind="ResourceClaim", type=AllocatedClaim
)
RESOURCE_SLICES = Kind(
    group="resource.k8s.io",
    resource="resourceslices",
    kind="ResourceSlice",
    type=ResourceSlice,
    namespaced=False,
)
CERTIFICATE_SIGNING_REQUESTS = Kind(
    group="certificates.k8s.io",
    resource="certificatesigningrequests",
    kind="CertificateSigningRequest",
    type=CertificateSigningRequest,
    namespaced=False,
)
CLUSTER_TRUST_BUNDLES = Kind(
    group="certificates.k8s.io",
    version="v1beta1",
    resource="clustertrustbundles",
    kind="ClusterTrustBundle",
    type=ClusterTrustBundle,
    namespaced=False,
)
TOKEN_REVIEWS = Kind(
    group="authentication.k8s.io",
    resource="tokenreviews",
    kind="TokenReview",
    type=TokenReview,
    namespaced=False,
)
SUBJECT_ACCESS_REVIEWS = Kind(
    group="authorization.k8s.io",
    resource="subjectaccessreviews",
    kind="SubjectAccessReview",
    type=SubjectAccessReview,
    namespaced=False,
)

KINDS: tuple[Kind[Any], ...] = (
    PODS,
    NODES,
    EVENTS,
    SECRETS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SERVICES,
    SERVICE_ACCOUNTS,
    LEASES,
    RUNTIME_CLASSES,
    CSI_DRIVERS,
    CSI_NODES,
    VOLUME_ATTACHMENTS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    CERTIFICATE_SIGNING_REQUESTS,
    CLUSTER_TRUST_BUNDLES,
    TOKEN_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
)
"""All of them."""
