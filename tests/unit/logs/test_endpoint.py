"""Whose log is sent, and in which words it is told that there is none."""

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.trio_clock import TrioClock
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.logs import ContainerLogs, LogChanges, LogReader, log_routes
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.server import Request, RequestError, Response, route_requests
from trio_kubelet.server.messages import Values

WHAT = 'container "c" in pod "p"'


def ended(id_: str = "old") -> dict[str, Any]:
    return {"terminated": {"exitCode": 1, "containerID": f"containerd://{id_}" if id_ else ""}}


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


RUNNING: dict[str, Any] = {"running": {}}


def pod(status: dict[str, Any] | None) -> Pod:
    named = {"name": "c", "containerID": "containerd://new"}
    statuses = [] if status is None else [{**named, **status}]
    return decode(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"containerStatuses": statuses},
        },
    )


async def ask(
    root: Path, status: dict[str, Any] | None, path: str = "/containerLogs/ns/p/c", query: str = ""
) -> tuple[int, str]:
    """Status and text for a pod that has the containers `old` and `new` in the runtime."""
    return await asked(LogReader(LogChanges()), root, status, path, query)


async def asked(
    reader: LogReader, root: Path, status: dict[str, Any] | None, path: str, query: str
) -> tuple[int, str]:
    found = pod(status)
    containers = [
        ObservedContainer(
            id=id_, name="c", sandbox_id="s", state=ObservedState.EXITED, log_path=path
        )
        for id_, path in {
            "new": f"{root}/ns_p_u1/c/1.log",
            "old": f"{root}/ns_p_u1/c/0.log",
            "lost": f"{root}/ns_p_u1/c/lost.log",
            "evil": f"{root}/../secret/x.log",
        }.items()
    ]
    seen = ObservedPod(uid="u1", name="p", namespace="ns", observed_at=0.0)
    logs = ContainerLogs(
        find_pod=lambda namespace, name: found if (namespace, name) == ("ns", "p") else None,
        observed=lambda uid: evolve(seen, containers=tuple(containers)),
        root=str(root),
        reader=reader,
        clock=TrioClock(),
    )
    handle = route_requests(log_routes(logs))
    values = Values(tuple((name, "true") for name in filter(None, [query])))
    try:
        answer = await handle(Request(method="GET", path=path, query=values))
    except RequestError as error:
        return error.status, str(error)
    assert isinstance(answer, Response)
    if isinstance(answer.body, bytes):
        return answer.status, answer.body.decode()
    return answer.status, b"".join([piece async for piece in answer.body]).decode()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "pods" / "ns_p_u1" / "c"
    folder.mkdir(parents=True)
    for name, text in (("0.log", "before"), ("1.log", "now")):
        (folder / name).write_text(f"2026-01-01T00:00:01.5Z stdout F {text}\n")
    return tmp_path / "pods"


@pytest.mark.parametrize(
    ("status", "query", "code", "words"),
    [
        ({"state": RUNNING}, "", 200, "now\n"),
        ({"state": RUNNING, "lastState": ended()}, "previous", 200, "before\n"),
        ({"state": ended("new")}, "", 200, "now\n"),
        ({"state": ended(""), "lastState": ended()}, "", 200, "before\n"),
        ({"state": waiting("CrashLoopBackOff"), "lastState": ended()}, "", 200, "before\n"),
        ({"state": RUNNING}, "previous", 400, f"previous terminated {WHAT} not found"),
        ({"state": ended("")}, "", 400, f"{WHAT} is terminated"),
        ({"state": waiting("x"), "lastState": ended("")}, "", 400, f"{WHAT} is terminated"),
        (None, "", 400, f"{WHAT} is not available"),
        ({}, "", 400, f"{WHAT} is waiting to start - no logs yet"),
        (
            {"state": waiting("ContainerCreating")},
            "",
            400,
            f"{WHAT} is waiting to start: ContainerCreating",
        ),
        (
            {"state": waiting("ErrImagePull")},
            "",
            400,
            f"{WHAT} is waiting to start: image can't be pulled",
        ),
        (
            {"state": waiting("ImagePullBackOff")},
            "",
            400,
            f"{WHAT} is waiting to start: trying and failing to pull image",
        ),
        (
            {"state": ended("gone")},
            "",
            400,
            "unable to retrieve container logs for containerd://gone",
        ),
        (
            {"state": ended("evil")},
            "",
            400,
            "unable to retrieve container logs for containerd://evil",
        ),
    ],
)
async def test_whose_log_it_is_follows_from_the_status(
    root: Path, status: dict[str, Any], query: str, code: int, words: str
) -> None:
    with trio.fail_after(60):
        assert await ask(root, status, query=query) == (code, words)


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/containerLogs/ns/other/c", 404, 'pod "other" does not exist'),
        ("/containerLogs/other/p/c", 404, 'pod "p" does not exist'),
        ("/containerLogs/ns/p/x", 404, 'container "x" not found in pod "p"'),
        ("/containerLogs/ns/p", 404, "404 page not found\n"),
        ("/containerLogs/ns/p/c/../../secret", 307, "307 temporary redirect\n"),
    ],
)
async def test_what_is_not_there_is_not_found(root: Path, path: str, code: int, words: str) -> None:
    assert await ask(root, {"state": RUNNING}, path) == (code, words)


async def test_a_log_that_is_gone_is_named(root: Path) -> None:
    lost = root / "ns_p_u1" / "c" / "lost.log"
    words = f'failed to try resolving symlinks in path "{lost}": lstat {lost}: '
    expected = (400, f"{words}no such file or directory")
    assert await ask(root, {"state": ended("lost")}) == expected
