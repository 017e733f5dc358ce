"""Service accounts and the tokens that pods get in their name.

A token is asked for by creating a `TokenRequest` as the subresource `token` of the account; the
answer is the same object with its status filled in.
"""

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int64, confidential
from trio_kubelet.k8s.meta import LocalObjectReference, ObjectMeta, ObjectReference
from trio_kubelet.k8s.time import Time


@frozen(kw_only=True, repr=False, eq=False)
class ServiceAccount(ApiType):
    """An identity of pods, with the secrets to pull their images with."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    secrets: tuple[ObjectReference, ...] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    automount_service_account_token: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class BoundObjectReference(ApiType):
    """The object with which a token ends: the pod."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class TokenRequestSpec(ApiType):
    """The audience of a token, what it is bound to, and for how long it is valid."""

    audiences: tuple[str, ...] = ()
    expiration_seconds: Int64 | None = None
    bound_object_ref: BoundObjectReference | None = None


@frozen(kw_only=True, repr=False, eq=False)
class TokenRequestStatus(ApiType):
    """The token and when it ends; the server may give less time than was asked for."""

    token: str = field(default="", metadata=confidential())
    expiration_timestamp: Time | None = None


@frozen(kw_only=True, repr=False, eq=False)
class TokenRequest(ApiType):
    """A request for a token, and the response."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: TokenRequestSpec = field(factory=TokenRequestSpec)
    status: TokenRequestStatus = field(factory=TokenRequestStatus)
