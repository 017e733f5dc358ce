"""The handler that gives each request to its route."""

from collections.abc import Iterable
from urllib.parse import quote, urlencode

from attrs import evolve

from trio_kubelet.server.messages import Handler, Request, Response
from trio_kubelet.server.router import Found, MethodNotAllowed, Redirect, Resolution, Route, Router


def route_requests(routes: Iterable[Route]) -> Handler:
    """A handler that knows these routes; statuses of all else are those of the Go kubelet."""
    router = Router(routes)

    async def handle(request: Request) -> Response | None:
        resolution = router.resolve(request.method, request.path)
        if not isinstance(resolution, Found):
            return _without_route(resolution, request)
        request.body.limit(resolution.route.max_body_bytes)
        return await resolution.route.handler(evolve(request, parameters=resolution.parameters))

    return handle


def _without_route(resolution: Resolution, request: Request) -> Response:
    if isinstance(resolution, Redirect):
        query = f"?{urlencode(request.query.pairs)}" if request.query.pairs else ""
        location = quote(resolution.path) + query
        return Response(
            status=307, headers=(("Location", location),), body=b"307 temporary redirect\n"
        )
    if isinstance(resolution, MethodNotAllowed):
        allow = ", ".join(resolution.allow)
        return Response(status=405, headers=(("Allow", allow),), body=b"405: Method Not Allowed")
    return Response(status=404, body=b"404 page not found\n")
