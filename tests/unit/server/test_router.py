"""Which route a request goes to, and what is said where there is none.

The rows are what the Go kubelet v1.36.3 answers.
"""

import pytest

from trio_kubelet.server import ANY, Request, Response, Route, route_requests
from trio_kubelet.server.messages import Values
from trio_kubelet.server.router import (
    ADMIN,
    MethodNotAllowed,
    NotFound,
    Redirect,
    RouteMatch,
    Router,
    clean_path,
)


async def answer(request: Request) -> Response:
    return Response(body=" ".join(request.parameters.values()).encode())


PATTERNS = (
    (ANY, "/healthz"),
    (ANY, "/healthz/ping"),
    ("GET", "/pods[/]"),
    ("GET", "/runningpods/"),
    ("GET", "/containerLogs/{namespace}/{pod}/{container}[/]"),
    ("GET", "/exec/{namespace}/{pod}/{container}[/]"),
    ("POST", "/exec/{namespace}/{pod}/{container}[/]"),
    ("POST", "/exec/{namespace}/{pod}/{uid}/{container}[/]"),
    ("POST", "/checkpoint/{namespace}/{pod}/{container}[/]"),
    ("GET", "/logs/{path...}"),
    ("GET", "/metrics/{name}"),
    ("GET", "/metrics/cadvisor"),
)
ROUTES = tuple(Route(method, pattern, answer, ADMIN) for method, pattern in PATTERNS)


@pytest.mark.parametrize(
    ("method", "path", "pattern", "parameters"),
    [
        ("GET", "/healthz", "/healthz", ()),
        ("DELETE", "/healthz", "/healthz", ()),
        ("HEAD", "/healthz/ping", "/healthz/ping", ()),
        ("GET", "/pods", "/pods[/]", ()),
        ("GET", "/pods/", "/pods[/]", ()),
        ("GET", "/runningpods/", "/runningpods/", ()),
        ("GET", "/containerLogs/ns/web/main", PATTERNS[4][1], ("ns", "web", "main")),
        ("GET", "/containerLogs/ns/web/main/", PATTERNS[4][1], ("ns", "web", "main")),
        ("GET", "/exec/ns/web/main", PATTERNS[5][1], ("ns", "web", "main")),
        ("POST", "/exec/ns/web/main", PATTERNS[5][1], ("ns", "web", "main")),
        ("POST", "/exec/ns/web/uid/main", PATTERNS[7][1], ("ns", "web", "uid", "main")),
        ("GET", "/logs/", "/logs/{path...}", ("",)),
        ("GET", "/logs/pods/a.log", "/logs/{path...}", ("pods/a.log",)),
        ("GET", "/logs/pods/", "/logs/{path...}", ("pods/",)),
        ("GET", "/logs/a\nb", "/logs/{path...}", ("a\nb",)),
        ("GET", "/metrics/cadvisor", "/metrics/cadvisor", ()),
        ("GET", "/metrics/probes", "/metrics/{name}", ("probes",)),
    ],
)
def test_a_path_finds_its_route_and_parameters(
    method: str, path: str, pattern: str, parameters: tuple[str, ...]
) -> None:
    found = Router(ROUTES).resolve(method, path)
    assert isinstance(found, RouteMatch)
    assert found.route.pattern == pattern
    assert found.route.method in (method, ANY)
    assert tuple(found.parameters.values()) == parameters


@pytest.mark.parametrize(
    ("method", "path", "resolution"),
    [
        ("GET", "/", NotFound()),
        ("GET", "/healthz/", NotFound()),
        ("GET", "/healthz/ping/", NotFound()),
        ("GET", "/healthz/nope", NotFound()),
        ("GET", "/pods/foo", NotFound()),
        ("GET", "/Pods", NotFound()),
        ("GET", "/pods\0", NotFound()),
        ("GET", "/pods\n", NotFound()),
        ("GET", "/containerLogs/ns/web", NotFound()),
        ("GET", "/containerLogs/ns/web/main/more", NotFound()),
        ("HEAD", "/nope", NotFound()),
        ("HEAD", "/pods", MethodNotAllowed(("GET",), ADMIN)),
        ("POST", "/pods", MethodNotAllowed(("GET",), ADMIN)),
        ("OPTIONS", "/pods/", MethodNotAllowed(("GET",), ADMIN)),
        ("PUT", "/exec/ns/web/main", MethodNotAllowed(("GET", "POST"), ADMIN)),
        ("GET", "/checkpoint/ns/web/main", MethodNotAllowed(("POST",), ADMIN)),
        ("POST", "/metrics/cadvisor", MethodNotAllowed(("GET",), ADMIN)),
        ("POST", "/logs/", MethodNotAllowed(("GET",), ADMIN)),
        ("GET", "/runningpods", Redirect("/runningpods/")),
        ("GET", "/logs", Redirect("/logs/")),
        ("GET", "//pods", Redirect("/pods")),
        ("GET", "/pods//", Redirect("/pods/")),
        ("GET", "/healthz/../pods", Redirect("/pods")),
        ("GET", "/logs/..", Redirect("/")),
        ("GET", "/logs/../../etc/shadow", Redirect("/etc/shadow")),
        ("GET", "/nope/../x", Redirect("/x")),
        ("GET", "", Redirect("/")),
    ],
)
def test_where_there_is_no_route_it_is_known_why(
    method: str, path: str, resolution: object
) -> None:
    assert Router(ROUTES).resolve(method, path) == resolution


def test_the_order_of_routes_makes_no_difference() -> None:
    for routes in (ROUTES, ROUTES[::-1]):
        found = Router(routes).resolve("GET", "/metrics/cadvisor")
        assert isinstance(found, RouteMatch)
        assert found.route.pattern == "/metrics/cadvisor"


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("/", "/"),
        ("", "/"),
        ("//", "/"),
        ("///a", "/a"),
        ("/a/./b", "/a/b"),
        ("/a/../../b/", "/b/"),
        ("/..", "/"),
        ("/a/", "/a/"),
    ],
)
def test_a_clean_path_has_no_dots_and_no_empty_segments(path: str, clean: str) -> None:
    assert clean_path(path) == clean
    assert clean_path(clean) == clean


@pytest.mark.parametrize(
    "pattern",
    ["pods", "", "/{", "/a{b}", "/{a...}/b", "/{A}", "/[/]x", "/{a}{b}"],
)
def test_a_pattern_that_is_none_is_an_error(pattern: str) -> None:
    with pytest.raises(ValueError, match="no pattern"):
        Router([Route("GET", pattern, answer, ADMIN)])


def test_two_routes_for_the_same_are_an_error() -> None:
    with pytest.raises(ValueError, match="two routes for GET /a"):
        Router([Route("GET", "/a", answer, ADMIN), Route("GET", "/a", answer, ADMIN)])


@pytest.mark.parametrize(
    ("method", "path", "status", "headers", "body"),
    [
        ("GET", "/containerLogs/ns/web/main", 200, (), b"ns web main"),
        ("GET", "/nope", 404, (), b"404 page not found\n"),
        ("PUT", "/exec/a/b/c", 405, (("Allow", "GET, POST"),), b"405: Method Not Allowed"),
        ("GET", "/runningpods", 307, (("Location", "/runningpods/?x=1&y=%2F"),), None),
        (
            "GET",
            "//evil.example/%\r\n",
            307,
            (("Location", "/evil.example/%25%0D%0A?x=1&y=%2F"),),
            None,
        ),
    ],
)
async def test_responses_without_a_route(
    method: str, path: str, status: int, headers: tuple[tuple[str, str], ...], body: bytes | None
) -> None:
    query = Values((("x", "1"), ("y", "/")))
    response = await route_requests(ROUTES)(Request(method=method, path=path, query=query))
    assert response is not None
    assert (response.status, response.headers) == (status, headers)
    assert body is None or response.body == body
