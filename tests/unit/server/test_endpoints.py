"""What the paths give, as the Go kubelet's clients expect it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import orjson
import pytest
import trio
from attrs import evolve

from tests.trio_clock import TrioClock
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, PodStatus
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.server import (
    AnswerWriters,
    Request,
    Response,
    Route,
    configz_routes,
    healthz_routes,
    journal_routes,
    pod_routes,
    route_requests,
    running_pods_routes,
)
from trio_kubelet.server.endpoints import LIST_PIECE_BYTES
from trio_kubelet.server.messages import Values
from trio_kubelet.telemetry import Journal

WELL = {"ping": lambda: "", "syncloop": lambda: ""}
STUCK = {"ping": lambda: "", "syncloop": lambda: "no turn for 40 s"}


async def get(routes: Sequence[Route], path: str, *, method: str = "GET", **query: str) -> Response:
    request = Request(method=method, path=path, query=Values(tuple(query.items())))
    response = await route_requests(routes)(request)
    assert response is not None
    return response


async def pieces_of(response: Response) -> list[bytes]:
    assert isinstance(response.body, AsyncGenerator)
    async with aclosing(response.body) as pieces:
        return [piece async for piece in pieces]


def content(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/healthz", "/healthz/ping", "/healthz/syncloop"])
async def test_who_is_well_says_ok_whatever_the_method(path: str, method: str) -> None:
    response = await get(healthz_routes(WELL), path, method=method)
    assert (response.status, response.body) == (200, b"ok")


async def test_verbose_lists_the_checks() -> None:
    response = await get(healthz_routes(WELL), "/healthz", verbose="")
    assert response.body == b"[+]ping ok\n[+]syncloop ok\nhealthz check passed\n"


async def test_a_check_that_fails_is_a_500_that_lists_the_checks() -> None:
    response = await get(healthz_routes(STUCK), "/healthz")
    assert response.status == 500
    assert response.body == (
        b"[+]ping ok\n[-]syncloop failed: no turn for 40 s\nhealthz check failed\n"
    )


async def test_a_check_that_fails_fails_alone() -> None:
    routes = healthz_routes(STUCK)
    assert (await get(routes, "/healthz/ping")).status == 200
    response = await get(routes, "/healthz/syncloop")
    assert (response.status, response.body) == (500, b"internal server error: no turn for 40 s\n")


@pytest.mark.parametrize(
    "path", ["/", "/healthz/", "/healthz/ping/", "/healthz/unknown", "/pod", "/pods"]
)
async def test_other_paths_are_not_found(path: str) -> None:
    response = await get(healthz_routes(WELL), path)
    assert (response.status, response.body) == (404, b"404 page not found\n")


def pod(name: str) -> Pod:
    return Pod(
        api_version="v1",
        kind="Pod",
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PodSpec(containers=(Container(name="c", image="busybox"),)),
        status=PodStatus(phase="Running", pod_ip="10.0.0.2"),
    )


async def test_pods_are_a_list_as_the_api_has_them() -> None:
    routes = pod_routes(lambda: [pod("a"), pod("b")], AnswerWriters())
    response = await get(routes, "/pods")
    text = b"".join(await pieces_of(response))
    assert b"".join(await pieces_of(await get(routes, "/pods/"))) == text
    assert response.content_type == "application/json"
    listed = orjson.loads(text)
    items = listed.pop("items")
    assert listed == {"kind": "PodList", "apiVersion": "v1", "metadata": {}}
    assert items[0] == {
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.2"},
    }
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]


async def test_no_pods_are_an_empty_list() -> None:
    response = await get(pod_routes(list, AnswerWriters()), "/pods")
    assert orjson.loads(b"".join(await pieces_of(response)))["items"] == []


async def test_of_a_list_of_pods_no_more_is_written_than_is_read() -> None:
    pods = [pod("x" * LIST_PIECE_BYTES)] * 3
    pieces = await pieces_of(await get(pod_routes(lambda: pods, AnswerWriters()), "/pods"))
    assert [len(piece) // LIST_PIECE_BYTES for piece in pieces] == [2, 2, 2, 0, 0]
    assert len(orjson.loads(b"".join(pieces))["items"]) == 3


async def test_what_the_runtime_runs_is_listed() -> None:
    running = ObservedContainer(
        id="1",
        name="c",
        sandbox_id="s",
        state=ObservedState.RUNNING,
        image="i",
        image_id="sha256:1",
    )
    ended = evolve(running, name="over", state=ObservedState.EXITED)
    runs = ObservedPod(
        uid="u", name="p", namespace="ns", observed_at=0.0, containers=(running, ended)
    )
    routes = running_pods_routes(lambda: (runs, evolve(runs, containers=(ended,))), AnswerWriters())
    assert (await get(routes, "/runningpods")).status == 307
    pieces = await pieces_of(await get(routes, "/runningpods/"))
    assert orjson.loads(b"".join(pieces)) == {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
                "spec": {"containers": [{"name": "c", "image": "sha256:1", "resources": {}}]},
                "status": {},
            }
        ],
    }


async def test_the_journal_is_shown_whole_or_for_one_pod() -> None:
    journal = Journal(TrioClock(), capacity=3)
    for key in ("default/web/old", "default/web", "default/web/main", "default/web2"):
        journal.note("event", key, "Started", "Container started", type="Normal")
    writers = AnswerWriters()
    routes = journal_routes(journal, writers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writers.run)
        whole = orjson.loads(content(await get(routes, "/debug/journal")))
        one = orjson.loads(content(await get(routes, "/debug/journal", pod="default/web")))
        nursery.cancel_scope.cancel()
    assert whole["dropped"] == 1
    assert [entry["key"] for entry in whole["entries"]] == [
        "default/web",
        "default/web/main",
        "default/web2",
    ]
    assert [entry["key"] for entry in one["entries"]] == ["default/web", "default/web/main"]
    assert one["entries"][0]["details"] == {"type": "Normal"}


async def test_the_configuration_is_shown_without_secrets() -> None:
    configuration = KubeletConfiguration(
        max_pods=7,
        static_pod_url="https://me:secret@host/pods?x=1",
        static_pod_url_header={"Authorization": ("secret",)},
    )
    answer = content(await get(configz_routes(lambda: configuration), "/configz"))
    shown = orjson.loads(answer)["kubeletconfig"]
    assert shown["maxPods"] == 7
    assert shown["authentication"]["webhook"] == {"enabled": True, "cacheTTL": "2m0s"}
    assert shown["staticPodURL"] == "https://<masked>@host/pods?x=1"
    assert shown["staticPodURLHeader"] == {"Authorization": ["<masked>"]}
    assert b"secret" not in answer
