"""The routes of a server: what answers which path, and who may ask there.

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

from attrs import evolve, field, frozen

from trio_kubelet.server.messages import MAX_BODY_BYTES, Handler, Request, Response

ANY = "*"
"""The method of a route that takes them all."""

PROXY = "proxy"
"""The subresource of the Node object that stands for all that has none of its own."""

_OPTIONAL_SLASH = "[/]"
_PARAMETER = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")


@frozen(kw_only=True)
class Right:
    """The right that a route asks for: a right to one of these subresources of the Node object."""

    subresource: str = PROXY
    fine_grained: str = ""
    """Tried first, where the gate KubeletFineGrainedAuthz is on (KEP-2862); empty for none."""
    creates: bool = False
    """Asked for by any method, it is a `create`: something is run in a pod. WebSocket clients use
    GET, and who may only read must not run a command."""


ADMIN = Right()
"""For what no narrower right opens, and for paths that are not there."""
RUN_IN_POD = Right(creates=True)


@frozen
class Route:
    """The handler of one method (or ANY) on the paths of a pattern."""

    method: str
    pattern: str
    handler: Handler
    right: Right
    is_public: bool = field(default=False, kw_only=True)
    """The read-only port has it, which asks nobody who he is."""
    max_body_bytes: int = field(default=MAX_BODY_BYTES, kw_only=True)

    @property
    def label(self) -> str:
        """The word for its paths in metrics: the literal segments, of two for metrics alone."""
        first, _, rest = self.pattern.removesuffix(_OPTIONAL_SLASH).strip("/").partition("/")
        return f"{first}/{rest}" if first == "metrics" and rest else first


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
    right: Right


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
        """The route of a request for a decoded path."""
        clean = clean_path(path)
        if clean != path:
            return Redirect(clean)
        others: dict[str, Route] = {}
        for pattern, methods in self._patterns:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            route = methods.get(method) or methods.get(ANY)
            if route is not None:
                return RouteMatch(route, found.groupdict())
            for known, other in methods.items():
                others.setdefault(known, other)
        if others:
            right = next(iter(others.values())).right
            return MethodNotAllowed(tuple(sorted(others)), right)
        if any(pattern.fullmatch(f"{path}/") for pattern, _ in self._patterns):
            return Redirect(f"{path}/")
        return NotFound()

    def right(self, method: str, path: str) -> Right:
        """The right for a request to a decoded path; of one that is redirected, the right there."""
        resolution = self.resolve(method, path)
        while isinstance(resolution, Redirect):
            resolution = self.resolve(method, resolution.path)
        if isinstance(resolution, RouteMatch):
            return resolution.route.right
        return resolution.right if isinstance(resolution, MethodNotAllowed) else ADMIN

    async def handle(self, request: Request) -> Response | None:
        """Answer a request; statuses of what no route answers are those of the Go kubelet."""
        resolution = self.resolve(request.method, request.path)
        if not isinstance(resolution, RouteMatch):
            return _without_route(resolution, request)
        request.place.owner = resolution.parameters.get("namespace", "")
        request.body.limit(resolution.route.max_body_bytes)
        return await resolution.route.handler(evolve(request, parameters=resolution.parameters))


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
    """A handler that knows these routes, and asks nobody for rights."""
    return Router(routes).handle


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
