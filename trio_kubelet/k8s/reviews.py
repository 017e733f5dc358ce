"""Reviews: what the API server is asked about those who ask the node."""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Mandatory, confidential
from trio_kubelet.k8s.meta import ObjectMeta


@frozen(kw_only=True, repr=False, eq=False)
class UserInfo(ApiType):
    """A user, as an authenticator knows them."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class TokenReviewSpec(ApiType):
    """The token in question, and for whom it should have been made, if that matters."""

    token: Mandatory[str] = field(default="", metadata=confidential())
    audiences: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class TokenReviewStatus(ApiType):
    """The user of a token; `error` says why it could not be checked."""

    authenticated: bool | None = None
    user: UserInfo | None = None
    audiences: tuple[str, ...] = ()
    error: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class TokenReview(ApiType):
    """A request to say whose token it is, and the response."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[TokenReviewSpec] = field(factory=TokenReviewSpec)
    status: TokenReviewStatus = field(factory=TokenReviewStatus)


@frozen(kw_only=True, repr=False, eq=False)
class ResourceAttributes(ApiType):
    """The action that a user wants to take with an object of the API."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class SubjectAccessReviewSpec(ApiType):
    """A user and the action that it wants to take."""

    resource_attributes: ResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(factory=dict)
    uid: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class SubjectAccessReviewStatus(ApiType):
    """True if it is allowed; `evaluation_error` tells of rules that could not be looked at."""

    allowed: Mandatory[bool] = False
    denied: bool | None = None
    reason: str = ""
    evaluation_error: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class SubjectAccessReview(ApiType):
    """A request to say whether somebody may do something, and the response."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    spec: Mandatory[SubjectAccessReviewSpec] = field(factory=SubjectAccessReviewSpec)
    status: SubjectAccessReviewStatus = field(factory=SubjectAccessReviewStatus)
