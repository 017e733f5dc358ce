"""Certificates: requests for the node's own, and bundles of those to trust."""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory
from trio_kubelet.k8s.meta import ObjectMeta
from trio_kubelet.k8s.time import Time


@frozen(kw_only=True, repr=False, eq=False)
class CertificateSigningRequestSpec(ApiType):
    """A wish for a certificate: the signer and the usages; `request` is PKCS#10 in PEM."""

    request: Mandatory[bytes] = b""
    signer_name: Mandatory[str] = ""
    expiration_seconds: Int32 | None = None
    usages: tuple[str, ...] = ()
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class CertificateSigningRequestCondition(ApiType):
    """Approved, Denied or Failed."""

    type: Mandatory[str] = ""
    status: Mandatory[str] = ""
    reason: str = ""
    message: str = ""
    last_update_time: Time | None = None
    last_transition_time: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class CertificateSigningRequestStatus(ApiType):
    """The result of the request; `certificate` is the chain in PEM, empty until it is issued."""

    conditions: tuple[CertificateSigningRequestCondition, ...] = ()
    certificate: bytes = b""


@frozen(kw_only=True, repr=False, eq=False)
class CertificateSigningRequest(ApiType):
    """A request for a certificate."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[CertificateSigningRequestSpec] = field(factory=CertificateSigningRequestSpec)
    status: CertificateSigningRequestStatus = field(factory=CertificateSigningRequestStatus)


@frozen(kw_only=True, repr=False, eq=False)
class ClusterTrustBundleSpec(ApiType):
    """The certificates in PEM, and the signer that they stand for, if any."""

    signer_name: str = ""
    trust_bundle: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class ClusterTrustBundle(ApiType):
    """Certificates of authorities that pods may trust."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[ClusterTrustBundleSpec] = field(factory=ClusterTrustBundleSpec)
