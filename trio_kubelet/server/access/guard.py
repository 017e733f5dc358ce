"""The handler before all others: nobody gets past it whom the rules do not let in."""

import structlog

from trio_kubelet.k8s.client import ApiError
from trio_kubelet.server.access.attributes import Attributes, attributes_of
from trio_kubelet.server.access.authentication import Authenticator
from trio_kubelet.server.access.authorization import Authorize
from trio_kubelet.server.access.users import User
from trio_kubelet.server.messages import Handler, Request, Response

log = structlog.get_logger("server")


def guard(
    handler: Handler, authenticator: Authenticator, authorize: Authorize, *, fine_grained: bool
) -> Handler:
    """Let a request through to `handler` if its user may make it; the Go kubelet's answers if not.

    `fine_grained` is the gate KubeletFineGrainedAuthz.
    """

    async def handle(request: Request) -> Response | None:
        user = await authenticator.user(request)
        if user is None:
            return _unauthorized(request)
        wanted = attributes_of(request.method, request.path, fine_grained=fine_grained)
        try:
            allowed = await _any_allowed(authorize, user, wanted)
        except ApiError as error:
            log.warning("authorization failed", user=user.name, error=str(error))
            return Response(status=500, body=_words("Authorization error", user, wanted))
        if not allowed:
            return Response(status=403, body=_words("Forbidden", user, wanted))
        return await handler(request)

    return handle


async def _any_allowed(authorize: Authorize, user: User, wanted: tuple[Attributes, ...]) -> bool:
    for attributes in wanted:
        if await authorize(user, attributes):
            return True
    return False


def _unauthorized(request: Request) -> Response:
    """A client whose certificate is no good any more is to make a new connection."""
    headers = () if request.certificate is None else (("Connection", "close"),)
    return Response(status=401, headers=headers, body=b"Unauthorized")


def _words(what: str, user: User, wanted: tuple[Attributes, ...]) -> bytes:
    subresources = " ".join(each.subresource for each in wanted)
    return (
        f"{what} (user={user.name}, verb={wanted[0].verb}, resource=nodes, "
        f"subresource(s)=[{subresources}])\n"
    ).encode(errors="replace")
