"""Checkpoints: what the runtime is asked, and the Go kubelet's words for what cannot be."""

from pathlib import Path

import pytest
from attrs import define, field

from tests.trio_clock import TrioClock
from tests.unit.streaming.test_streams import POD, observed
from trio_kubelet.ports.checkpoints import Checkpoints, checkpoint_routes
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.server import Request, RequestError, Response, route_requests
from trio_kubelet.server.messages import Values

NAME = "checkpoint-p_ns-c-2026-01-01T00:00:00Z.tar"


@define
class Runtime:
    error: RpcError | None = None
    asked: list[tuple[str, str, int]] = field(factory=list)

    async def checkpoint_container(
        self, container_id: str, location: str, timeout_seconds: int
    ) -> None:
        self.asked.append((container_id, location, timeout_seconds))
        if self.error is not None:
            raise self.error


class Midnight(TrioClock):
    def now_ns(self) -> int:
        return 1_767_225_600_000_000_000


async def ask(runtime: Runtime, path: str, timeout: str = "") -> Response:
    checkpoints = Checkpoints(
        find_pod=lambda namespace, name: POD if (namespace, name) == ("ns", "p") else None,
        observed=observed,
        runtime=runtime,
        folder=Path("/root/checkpoints"),
        clock=Midnight(),
    )
    query = Values((("timeout", timeout),) if timeout else ())
    request = Request(method="POST", path=f"/checkpoint/{path}", query=query)
    response = await route_requests(checkpoint_routes(checkpoints))(request)
    assert response is not None
    return response


@pytest.mark.parametrize(("timeout", "seconds"), [("", 0), ("0", 0), ("5", 5)])
async def test_the_runtime_writes_an_archive_whose_path_is_told(timeout: str, seconds: int) -> None:
    runtime = Runtime()
    response = await ask(runtime, "ns/p/c", timeout)
    path = f"/root/checkpoints/{NAME}"
    assert (response.status, response.body) == (200, f'{{"items":["{path}"]}}'.encode())
    assert runtime.asked == [("id-c", path, seconds)]


@pytest.mark.parametrize(
    ("path", "timeout", "status", "words"),
    [
        # As seen on a Go kubelet v1.36.3.
        ("ns/nope/c", "", 404, "pod does not exist"),
        ("ns/p/nope", "", 404, "container nope does not exist"),
        ("ns/p/c", "x", 404, "cannot parse value of timeout parameter"),
        ("ns/p/c", "9" * 5000, 404, "cannot parse value of timeout parameter"),
        (
            "ns/p/c",
            "-1",
            500,
            "checkpointing of ns/p/c failed (CheckpointContainer requires the timeout value to be "
            "> 0)",
        ),
        (
            "ns/p/c",
            "",
            500,
            "checkpointing of ns/p/c failed (rpc error: code = Unimplemented desc = no such call)",
        ),
    ],
)
async def test_why_there_is_none_is_told(path: str, timeout: str, status: int, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        await ask(Runtime(RpcError(Code.UNIMPLEMENTED, "no such call")), path, timeout)
    assert (refused.value.status, str(refused.value)) == (status, words)
