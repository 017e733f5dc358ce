"""The rights of users: the API server is asked, and its answers are kept for a while.

A route is a subresource of the Node object, so that a rule of RBAC such as `get` on
`nodes/metrics` opens the metrics and nothing else.
"""

from collections.abc import Awaitable, Callable, Mapping

from attrs import frozen

from trio_kubelet.k8s import (
    SUBJECT_ACCESS_REVIEWS,
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
)
from trio_kubelet.k8s.client import Api
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.server.access.expiring_cache import Expiring, ExpiringCache
from trio_kubelet.server.access.users import User
from trio_kubelet.server.router import Right
from trio_kubelet.tasks.fair_limiter import FairLimiter

VERBS: Mapping[str, str] = {
    "POST": "create",
    "GET": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}


@frozen
class Attributes:
    """The access that is asked for: a verb, and a subresource of the node."""

    verb: str
    subresource: str


def attributes_of(method: str, right: Right, *, fine_grained: bool) -> tuple[Attributes, ...]:
    """Each of these allows a request by this method; the verb of an unknown method is empty."""
    verb = "create" if right.creates else VERBS.get(method, "")
    fine = (right.fine_grained,) if fine_grained and right.fine_grained else ()
    return tuple(Attributes(verb, name) for name in (*fine, right.subresource))


Authorize = Callable[[User, Attributes], Awaitable[bool]]
"""True if this is allowed; raises ApiError where nobody could tell."""


async def allow_always(_user: User, _attributes: Attributes) -> bool:
    """Mode AlwaysAllow: whoever is let in may do everything."""
    return True


@frozen
class AnswerSeconds:
    """The time that the API server's answers hold."""

    allowed: float
    denied: float


REVIEWS_AT_ONCE, REVIEWS_OF_A_USER = 16, 4


class Webhook:
    """Mode Webhook: the API server decides (SubjectAccessReview), and its answers are kept.

    Users take turns.
    """

    def __init__(self, api: Api, node_name: str, seconds: AnswerSeconds) -> None:
        self._api = api
        self._node_name = node_name
        self._seconds = seconds
        self._reviews: ExpiringCache[bytes, bool] = ExpiringCache()
        self._turns = FairLimiter(REVIEWS_AT_ONCE, REVIEWS_OF_A_USER)

    async def allows(self, user: User, attributes: Attributes) -> bool:
        """Ask, unless there is an answer that holds. Raises ApiError."""
        spec = SubjectAccessReviewSpec(
            resource_attributes=ResourceAttributes(
                verb=attributes.verb,
                version="v1",
                resource="nodes",
                subresource=attributes.subresource,
                name=self._node_name,
            ),
            user=user.name,
            uid=user.uid,
            groups=user.groups,
            extra=user.extra,
        )

        async def fetch() -> Expiring[bool]:
            review = SubjectAccessReview(spec=spec)
            async with self._turns.share(user.name):
                status = (await self._api.create(SUBJECT_ACCESS_REVIEWS, review)).status
            allowed = status.allowed and not status.denied
            return Expiring(allowed, self._seconds.allowed if allowed else self._seconds.denied)

        return await self._reviews.get(dumps(encode(spec)), fetch)
