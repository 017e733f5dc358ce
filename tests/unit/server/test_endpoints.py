"""What the paths give, as the Go kubelet's clients expect it."""

from collections.abc import Mapping

import orjson
import pytest

from trio_kubelet.clock import TrioClock
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, PodStatus
from trio_kubelet.server import (
    Answer,
    Question,
    healthz_routes,
    journal_routes,
    read_only_routes,
    route,
)
from trio_kubelet.server.routes import Route
from trio_kubelet.telemetry import Journal

WELL = {"ping": lambda: "", "syncloop": lambda: ""}
STUCK = {"ping": lambda: "", "syncloop": lambda: "no turn for 40 s"}


async def ask(routes: Mapping[str, Route], path: str, **query: str) -> Answer:
    return await route(routes)(Question(method="GET", path=path, query=query))


@pytest.mark.parametrize("path", ["/healthz", "/healthz/", "/healthz/ping", "/healthz/syncloop"])
async def test_who_is_well_says_ok(path: str) -> None:
    answer = await ask(healthz_routes(WELL), path)
    assert (answer.status, answer.body) == (200, b"ok")


async def test_verbose_lists_the_checks() -> None:
    answer = await ask(healthz_routes(WELL), "/healthz", verbose="")
    assert answer.body == b"[+]ping ok\n[+]syncloop ok\nhealthz check passed\n"


async def test_a_check_that_fails_is_a_500_that_lists_the_checks() -> None:
    answer = await ask(healthz_routes(STUCK), "/healthz")
    assert answer.status == 500
    assert answer.body == (
        b"[+]ping ok\n[-]syncloop failed: no turn for 40 s\nhealthz check failed\n"
    )


async def test_a_check_that_fails_fails_alone() -> None:
    routes = healthz_routes(STUCK)
    assert (await ask(routes, "/healthz/ping")).status == 200
    answer = await ask(routes, "/healthz/syncloop")
    assert (answer.status, answer.body) == (500, b"internal server error: no turn for 40 s\n")


@pytest.mark.parametrize("path", ["/", "", "/healthz/unknown", "/pod", "/healthz/../pods"])
async def test_other_paths_are_not_found(path: str) -> None:
    answer = await ask(healthz_routes(WELL), path)
    assert (answer.status, answer.body) == (404, b"404 page not found\n")


def pod(name: str) -> Pod:
    return Pod(
        api_version="v1",
        kind="Pod",
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=(Container(name="c", image="busybox"),)),
        status=PodStatus(phase="Running", pod_ip="10.0.0.2"),
    )


async def test_pods_are_a_list_as_the_api_has_them() -> None:
    routes = read_only_routes(lambda: [pod("a"), pod("b")])
    answer = await ask(routes, "/pods")
    assert answer.content_type == "application/json"
    listed = orjson.loads(answer.body)
    items = listed.pop("items")
    assert listed == {"kind": "PodList", "apiVersion": "v1", "metadata": {}}
    assert items[0] == {
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.2"},
    }
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]


async def test_no_pods_are_an_empty_list() -> None:
    answer = await ask(read_only_routes(list), "/pods")
    assert orjson.loads(answer.body)["items"] == []


async def test_the_journal_is_shown_whole_or_for_one_pod() -> None:
    journal = Journal(TrioClock(), capacity=3)
    for key in ("default/old", "default/web", "default/web/main", "default/web2"):
        journal.note("event", key, "Started", "Container started", type="Normal")
    routes = journal_routes(journal)
    whole = orjson.loads((await ask(routes, "/debug/journal")).body)
    assert whole["dropped"] == 1
    assert [entry["key"] for entry in whole["entries"]] == [
        "default/web",
        "default/web/main",
        "default/web2",
    ]
    one = orjson.loads((await ask(routes, "/debug/journal", pod="default/web")).body)
    assert [entry["key"] for entry in one["entries"]] == ["default/web", "default/web/main"]
    assert one["entries"][0]["details"] == {"type": "Normal"}
