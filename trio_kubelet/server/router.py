"""Which route a method and a path belong to, and the handler that gives requests to routes.

A pattern is a path with parameters in it: `{name}` is one segment, `{name...}`, at the end, all
that follows. How a slash at the end counts differs among the Go kubelet's paths (seen on
v1.36.3), so patterns tell: `/healthz` is that path and no other, `/pods[/]` may have a slash, and
`/runningpods/` has one: without it the client is sent there. A literal segment goes before a
parameter, whatever the order of the routes.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from urllib.parse import quote, urlencode

from attrs import evolve, frozen

from trio_kubelet.server.messages import MAX_BODY_BYTES, Handler, Request, Response

ANY = "*"
"""The method of a route that takes them all."""

_OPTIONAL_SLASH = "[/]"
_PARAMETER = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")


@frozen
class Route:
    """What answers one method (or ANY) on the paths of a pattern."""

    method: str
    pattern: str
    handler: Handler
    max_body_bytes: int = MAX_BODY_BYTES


@frozen
class RouteMatch:
    """A route, and what its pattern's parameters stand for."""

    route: Route
    parameters: Mapping[str, str]


@frozen
class NotFound:
    """There is no such path."""


@frozen
class MethodNotAllowed:
    """The path is there, for these methods."""

    allow: tuple[str, ...]


@frozen
class Redirect:
    """The path is to be asked for under this name."""

    path: str


Resolution = RouteMatch | NotFound | MethodNotAllowed | Redirect


class Router:
    """The routes of a server. Raises ValueError for patterns that are none or are there twice."""

    def __init__(self, routes: Iterable[Route]) -> None:
        ordered = sorted(routes, key=lambda route: (_specificity(route.pattern), route.pattern))
        self._patterns: list[tuple[re.Pattern[str], dict[str, Route]]] = []
        for pattern, same in groupby(ordered, key=lambda route: route.pattern):
            methods: dict[str, Route] = {}
            for route in same:
                if route.method in methods:
                    raise ValueError(f"two routes for {route.method} {pattern}")
                methods[route.method] = route
            self._patterns.append((_compile(pattern), methods))

    def resolve(self, method: str, path: str) -> Resolution:
        """What is to be done with a request for a decoded path."""
        clean = clean_path(path)
        if clean != path:
            return Redirect(clean)
        allowed: list[str] = []
        for pattern, methods in self._patterns:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            route = methods.get(method) or methods.get(ANY)
            if route is not None:
                return RouteMatch(route, found.groupdict())
            allowed += methods
        if allowed:
            return MethodNotAllowed(tuple(sorted(set(allowed))))
        if any(pattern.fullmatch(f"{path}/") for pattern, _ in self._patterns):
            return Redirect(f"{path}/")
        return NotFound()


def clean_path(path: str) -> str:
    """A path without `.`, `..` and empty segments; a slash at its end stays."""
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return f"{clean}/" if path.endswith("/") and clean != "/" else clean


def _specificity(pattern: str) -> tuple[int, ...]:
    """A literal segment goes before a parameter, and that before the rest of a path."""
    parameters = (_PARAMETER.fullmatch(segment) for segment in pattern.split("/"))
    return tuple(0 if found is None else 2 if found[2] else 1 for found in parameters)


def _compile(pattern: str) -> re.Pattern[str]:
    path = pattern.removesuffix(_OPTIONAL_SLASH)
    if not path.startswith("/") or "..." in path[: path.rfind("/")]:
        raise ValueError(f"no pattern of a path: {pattern}")
    expression = "/".join(_segment(segment, pattern) for segment in path.split("/"))
    return re.compile(expression + ("/?" if path != pattern else ""), re.DOTALL)


def _segment(segment: str, pattern: str) -> str:
    found = _PARAMETER.fullmatch(segment)
    if found is None:
        if {"{", "}", "["} & set(segment):
            raise ValueError(f"no pattern of a path: {pattern}")
        return re.escape(segment)
    return f"(?P<{found[1]}>{'.*' if found[2] else '[^/]+'})"


def route_requests(routes: Iterable[Route]) -> Handler:
    """A handler that knows these routes; statuses of all else are those of the Go kubelet."""
    router = Router(routes)

    async def handle(request: Request) -> Response | None:
        resolution = router.resolve(request.method, request.path)
        if not isinstance(resolution, RouteMatch):
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
