"""Who may ask for what on the port for others, by the one table of routes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.agent.test_start import start
from trio_kubelet.server import Request, Response, Right, Route, Router
from trio_kubelet.server.access import Attributes
from trio_kubelet.server.access.authorization import attributes_of


async def agents_routes(root: Path) -> Sequence[Route]:
    async with start(root) as starting, trio.open_nursery() as nursery:
        routes = starting.agent.ports.routes(nursery)
        nursery.cancel_scope.cancel()
    return routes


@pytest.mark.parametrize(
    ("method", "path", "verb", "fine", "coarse"),
    [
        ("GET", "/stats/summary", "get", ["stats"], ["stats"]),
        ("GET", "/stats", "get", ["stats"], ["stats"]),
        ("GET", "/stats/nothing", "get", ["proxy"], ["proxy"]),
        ("GET", "/pods/a/b/why", "get", ["proxy"], ["proxy"]),
        ("PUT", "/pods", "update", ["pods", "proxy"], ["proxy"]),
        ("GET", "/runningpods", "get", ["pods", "proxy"], ["proxy"]),
        ("GET", "/statsx", "get", ["proxy"], ["proxy"]),
        ("GET", "/metrics", "get", ["metrics"], ["metrics"]),
        ("GET", "/metrics/cadvisor", "get", ["metrics"], ["metrics"]),
        ("GET", "/logs/", "get", ["log"], ["log"]),
        ("GET", "/spec/", "get", ["proxy"], ["proxy"]),
        ("POST", "/checkpoint/a/b/c", "create", ["checkpoint"], ["checkpoint"]),
        ("GET", "/statusz", "get", ["statusz"], ["statusz"]),
        ("GET", "/flagz", "get", ["configz"], ["configz"]),
        ("GET", "/pods", "get", ["pods", "proxy"], ["proxy"]),
        ("GET", "/pods/", "get", ["pods", "proxy"], ["proxy"]),
        ("GET", "/runningpods/", "get", ["pods", "proxy"], ["proxy"]),
        ("GET", "/healthz", "get", ["healthz", "proxy"], ["proxy"]),
        ("GET", "/healthz/ping", "get", ["healthz", "proxy"], ["proxy"]),
        ("GET", "/configz", "get", ["configz", "proxy"], ["proxy"]),
        ("HEAD", "/configz", "", ["configz", "proxy"], ["proxy"]),
        ("HEAD", "/healthz", "", ["healthz", "proxy"], ["proxy"]),
        ("POST", "/exec/a/b/c", "create", ["proxy"], ["proxy"]),
        ("GET", "/exec/a/b/c", "create", ["proxy"], ["proxy"]),
        ("GET", "/attach/a/b/c", "create", ["proxy"], ["proxy"]),
        ("GET", "/portForward/a/b", "create", ["proxy"], ["proxy"]),
        ("GET", "/run/a/b/c", "create", ["proxy"], ["proxy"]),
        ("PUT", "/run/a/b/c", "create", ["proxy"], ["proxy"]),
        ("GET", "/exec", "get", ["proxy"], ["proxy"]),
        ("GET", "/execute", "get", ["proxy"], ["proxy"]),
        ("PUT", "/x", "update", ["proxy"], ["proxy"]),
        ("PATCH", "/x", "patch", ["proxy"], ["proxy"]),
        ("DELETE", "/x", "delete", ["proxy"], ["proxy"]),
        ("OPTIONS", "/x", "", ["proxy"], ["proxy"]),
        ("get", "/x", "", ["proxy"], ["proxy"]),
        ("GET", "/", "get", ["proxy"], ["proxy"]),
        ("GET", "//stats", "get", ["stats"], ["stats"]),
        ("GET", "stats", "get", ["stats"], ["stats"]),
        ("GET", "/containerLogs/a/b/stats", "get", ["proxy"], ["proxy"]),
    ],
)
async def test_a_route_is_a_subresource_of_the_node(
    tmp_path: Path, method: str, path: str, verb: str, fine: Sequence[str], coarse: Sequence[str]
) -> None:
    router = Router(await agents_routes(tmp_path))
    for gate, names in ((True, fine), (False, coarse)):
        expected = tuple(Attributes(verb, name) for name in names)
        assert attributes_of(method, router.right(method, path), fine_grained=gate) == expected


async def test_without_authentication_there_is_nothing_of_the_agent_or_in_a_pod(
    tmp_path: Path,
) -> None:
    public = {route.pattern for route in await agents_routes(tmp_path) if route.is_public}
    first = {pattern.strip("/").partition("/")[0] for pattern in public}
    assert first == {"pods[", "healthz", "stats", "metrics"}


async def nothing(_request: Request) -> Response:
    return Response()


ROUTER = Router([Route("GET", "/a/{rest...}", nothing, Right(subresource="a"))])


@given(st.text(), st.text())
def test_whatever_is_asked_for_needs_a_right(method: str, path: str) -> None:
    assert attributes_of(method, ROUTER.right(method, path), fine_grained=True)
