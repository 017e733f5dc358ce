"""The API server's answers when it has no object to give, and the options of deletions."""

from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64
from trio_kubelet.k8s.meta import ListMeta, ObjectMeta


class StatusReason(StrEnum):
    """Why a request failed, in words for programs."""

    UNAUTHORIZED = "Unauthorized"
    FORBIDDEN = "Forbidden"
    NOT_FOUND = "NotFound"
    ALREADY_EXISTS = "AlreadyExists"
    CONFLICT = "Conflict"
    GONE = "Gone"
    INVALID = "Invalid"
    SERVER_TIMEOUT = "ServerTimeout"
    TIMEOUT = "Timeout"
    TOO_MANY_REQUESTS = "TooManyRequests"
    BAD_REQUEST = "BadRequest"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    NOT_ACCEPTABLE = "NotAcceptable"
    REQUEST_ENTITY_TOO_LARGE = "RequestEntityTooLarge"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    INTERNAL_ERROR = "InternalError"
    EXPIRED = "Expired"
    SERVICE_UNAVAILABLE = "ServiceUnavailable"


@frozen(kw_only=True, repr=False, eq=False)
class StatusCause(ApiType):
    """One of several causes; `field` is a path within the object that was sent."""

    reason: str = ""
    message: str = ""
    field: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class StatusDetails(ApiType):
    """The subject of a failure, and after how many seconds to try again."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class ApiStatus(ApiType):
    """The API's `Status`: `status` is Success or Failure, `code` the HTTP status."""

    api_version: str = ""
    kind: str = ""
    metadata: ListMeta | None = None
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: Int32 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Preconditions(ApiType):
    """The UID and version that the object must still have; otherwise there is a conflict."""

    uid: str = ""
    resource_version: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class DeleteOptions(ApiType):
    """The options of a deletion; a grace of 0 seconds removes a pod's object at once."""

    api_version: str = ""
    kind: str = ""
    grace_period_seconds: Int64 | None = None
    preconditions: Preconditions | None = None
    propagation_policy: str = ""
    orphan_dependents: bool | None = None
    dry_run: tuple[str, ...] = ()
    ignore_store_read_error_with_cluster_breaking_potential: bool | None = None


@frozen(kw_only=True, repr=False, eq=False)
class PartialObjectMetadata(ApiType):
    """Any object, of which only the metadata is read."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
