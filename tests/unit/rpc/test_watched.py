"""A transport that tells of its calls."""

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.rpc.watched import RpcCall, WatchedTransport
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.tasks.callbacks import Callbacks


class Runtime:
    """Answers one request, refuses another, and never answers a third."""

    async def version(self, _request: cri.VersionRequest) -> cri.VersionResponse:
        return cri.VersionResponse(runtime_name="fake")

    async def list_containers(
        self, _request: cri.ListContainersRequest
    ) -> cri.ListContainersResponse:
        raise RpcError(Code.UNAVAILABLE, "away")

    async def stream_pod_sandboxes(
        self, _request: cri.StreamPodSandboxesRequest
    ) -> AsyncIterator[cri.StreamPodSandboxesResponse]:
        yield cri.StreamPodSandboxesResponse(pod_sandboxes=[cri.PodSandbox(id="s")])

    async def status(self, _request: cri.StatusRequest) -> cri.StatusResponse:
        await trio.sleep_forever()
        raise AssertionError


def watched() -> tuple[RuntimeClient, list[RpcCall]]:
    calls: list[RpcCall] = []
    on_call: Callbacks[[RpcCall]] = Callbacks()
    on_call.add(calls.append)
    return RuntimeClient(WatchedTransport(InProcess(Runtime()), on_call)), calls


async def test_a_call_that_was_answered() -> None:
    client, calls = watched()
    assert (await client.version()).runtime_name == "fake"
    [call] = calls
    assert (call.method, call.error) == ("version", None)
    assert isinstance(call.response, cri.VersionResponse)


async def test_a_call_that_failed_fails_for_its_caller_too() -> None:
    client, calls = watched()
    with pytest.raises(RpcError):
        await client.list_containers()
    [call] = calls
    assert call.method == "list_containers"
    assert call.error is not None
    assert call.error.code is Code.UNAVAILABLE


async def test_a_list_that_is_streamed_is_a_call_too() -> None:
    calls: list[RpcCall] = []
    on_call: Callbacks[[RpcCall]] = Callbacks()
    on_call.add(calls.append)
    client = RuntimeClient(WatchedTransport(InProcess(Runtime()), on_call), streams_lists=True)
    assert [each.id for each in await client.list_pod_sandboxes()] == ["s"]
    with pytest.raises(RpcError):
        await client.list_containers()
    assert [(call.method, call.error is None) for call in calls] == [
        ("stream_pod_sandboxes", True),
        ("stream_containers", False),
        ("list_containers", False),
    ]


async def test_a_call_that_was_cut_off_is_none(autojump_clock: MockClock) -> None:
    client, calls = watched()
    with trio.move_on_after(1):
        await client.status()
    assert calls == []
