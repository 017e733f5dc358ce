"""The handler before all others: nobody gets past it whom the rules do not let in."""

import structlog
from attrs import evolve

from trio_kubelet.k8s.client import ApiError
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import Attributes, Authorize, attributes_of
from trio_kubelet.server.access.users import NOBODY, User
from trio_kubelet.server.messages import Handler, Request, Response
from trio_kubelet.server.router import Router

log = structlog.get_logger("server")


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
