"""The rights of users, and the handler before all others that lets nobody past without them.

A route is a subresource of the Node object, so that a rule of RBAC such as `get` on
`nodes/metrics` opens the metrics and nothing else. The API server is asked, and its answers are
kept for a while.
"""

from collections.abc import Awaitable, Callable, Mapping

import structlog
from attrs import evolve, frozen

from trio_kubelet.k8s import (
    SUBJECT_ACCESS_REVIEWS,
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
)
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.server.access.authentication import NOBODY, Authenticator, User
from trio_kubelet.server.messages import Handler, Request, Response
from trio_kubelet.server.router import Right, Router
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.future import Expiring, ExpiringCache

VERBS: Mapping[str, str] = {
    "POST": "create",
    "GET": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
log = structlog.get_logger("server")


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


def guard(
    router: Router, authenticator: Authenticator, authorize: Authorize, *, fine_grained: bool
) -> Handler:
    """Let a request through to its route if its user may make it; the Go kubelet's answers if not.

    `fine_grained` is the gate KubeletFineGrainedAuthz.
    """

    async def review(request: Request) -> User | Response:
        """Find out who asks, and return him if he may, else what he is told."""
        user = await authenticator.user(request)
        if user is None:
            return Response(status=401, body=b"Unauthorized")
        right = router.right(request.method, request.path)
        wanted = attributes_of(request.method, right, fine_grained=fine_grained)
        try:
            allowed = await _any_allowed(authorize, user, wanted)
        except ApiError as error:
            log.warning("authorization failed", user=user.name, error=str(error))
            return Response(status=500, body=_words("Authorization error", user, wanted))
        if not allowed:
            return Response(status=403, body=_words("Forbidden", user, wanted))
        return user

    async def handle(request: Request) -> Response | None:
        with request.place.under_review():
            found = await review(request)
        if isinstance(found, User):
            request.place.let_in(known=found != NOBODY)
            return await router.handle(request)
        # Of the client a new connection is wanted after some refusals, and at once if its
        # certificate is not good any more.
        is_last = request.place.refused()
        if is_last or (found.status == 401 and request.certificate is not None):
            return evolve(found, headers=(("Connection", "close"),))
        return found

    return handle


async def _any_allowed(authorize: Authorize, user: User, wanted: tuple[Attributes, ...]) -> bool:
    for attributes in wanted:
        if await authorize(user, attributes):
            return True
    return False


def _words(what: str, user: User, wanted: tuple[Attributes, ...]) -> bytes:
    subresources = " ".join(each.subresource for each in wanted)
    return (
        f"{what} (user={user.name}, verb={wanted[0].verb}, resource=nodes, "
        f"subresource(s)=[{subresources}])\n"
    ).encode(errors="replace")
