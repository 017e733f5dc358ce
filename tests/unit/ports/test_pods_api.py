"""What programs of the node are told of its pods at the pods socket, and how often they may ask."""

import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.pod_protobuf import read_pod
from tests.unit.ports.pods_node import ADDED, DEADLINE_SECONDS, PodsNode, Watcher
from trio_kubelet.k8s.client.rate_limit import RateLimit
from trio_kubelet.ports import pods_api
from trio_kubelet.ports.pods_api import MAX_WAITING, SOCKET
from trio_kubelet.rpc import Channel, Code, RpcError, open_rpc_loop
from trio_kubelet.rpc.stubs import v1alpha1 as wire

Stub = wire.PodsStub


@asynccontextmanager
async def served(node: PodsNode, folder: Path) -> AsyncIterator[Channel]:
    """A client of the socket, which is there until the end of the block."""
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(node.api.run)
        with trio.fail_after(DEADLINE_SECONDS):
            while not (folder / SOCKET).is_socket():  # noqa: ASYNC110 - nothing announces it
                await trio.sleep(0.01)
        yield Channel(str(folder / SOCKET))
        nursery.cancel_scope.cancel()


@pytest.fixture
def node(tmp_path: Path) -> PodsNode:
    return PodsNode(tmp_path)


async def test_programs_of_the_node_list_get_and_watch_its_pods(
    node: PodsNode, tmp_path: Path
) -> None:
    node.add("a", "b")
    node.report("b", "Running")
    async with served(node, tmp_path) as channel:
        listed = await channel.unary(Stub.list_pods, wire.ListPodsRequest())
        assert [read_pod(each) for each in listed.pods] == node.pods()
        one = await channel.unary(Stub.get_pod, wire.GetPodRequest(pod_uid="uid-b"))
        assert read_pod(one.pod) == node.pod("uid-b")
        async with channel.stream(Stub.watch_pods, wire.WatchPodsRequest()) as events:
            watcher = Watcher(events)
            assert list((await watcher.first()).values()) == node.pods()
            node.add("c")
            assert await watcher.told() == (ADDED, "c", "")


async def test_nobody_but_root_may_open_the_socket(node: PodsNode, tmp_path: Path) -> None:
    async with served(node, tmp_path):
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600


async def test_a_pod_that_is_not_there_is_not_found(node: PodsNode, tmp_path: Path) -> None:
    node.add("a")
    async with served(node, tmp_path) as channel:
        for uid in ("a", "", "x" * 10_000):
            with pytest.raises(RpcError) as error:
                await channel.unary(Stub.get_pod, wire.GetPodRequest(pod_uid=uid))
            assert error.value.code is Code.NOT_FOUND
            assert len(error.value.message) < 300


async def test_nothing_is_told_before_all_sources_are_known(tmp_path: Path) -> None:
    node = PodsNode(tmp_path, sources_known=False)
    node.add("a")
    async with served(node, tmp_path) as channel:

        async def watch() -> str:
            async with channel.stream(Stub.watch_pods, wire.WatchPodsRequest()) as events:
                return (await Watcher(events).told())[0]

        codes = []
        for ask in (
            lambda: channel.unary(Stub.list_pods, wire.ListPodsRequest()),
            lambda: channel.unary(Stub.get_pod, wire.GetPodRequest(pod_uid="uid-a")),
            watch,
        ):
            with pytest.raises(RpcError) as error:
                await ask()
            codes.append(error.value.code)
        assert codes == [Code.FAILED_PRECONDITION] * 3
        node.sources_known.set()
        assert await watch() == ADDED


async def test_calls_over_the_rate_are_refused(node: PodsNode, autojump_clock: MockClock) -> None:
    node.add("a")

    async def ask() -> Code:
        try:
            await node.api.get_pod(wire.GetPodRequest(pod_uid="uid-a"))
        except RpcError as error:
            return error.code
        return Code.OK

    assert [await ask() for _ in range(11)] == [Code.OK] * 10 + [Code.RESOURCE_EXHAUSTED]
    await trio.sleep(1)
    assert await ask() is Code.OK


async def test_calls_that_wait_for_others_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_api, "RATE", RateLimit(qps=1.0, burst=100))
    node, goes_on, codes = PodsNode(tmp_path), threading.Event(), list[Code]()

    def encode(_pods: object) -> list[bytes]:
        goes_on.wait(DEADLINE_SECONDS)
        return []

    monkeypatch.setattr(pods_api, "_encoded_list", encode)

    async def ask() -> None:
        try:
            await node.api.list_pods(wire.ListPodsRequest())
        except RpcError as error:
            codes.append(error.code)
            goes_on.set()

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_WAITING + 2):
            nursery.start_soon(ask)
    assert codes == [Code.RESOURCE_EXHAUSTED]


async def test_pods_that_are_too_much_for_one_answer_can_be_watched(
    node: PodsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_api, "MAX_LIST_BYTES", 100)
    node.add("a")
    assert len((await node.api.list_pods(wire.ListPodsRequest())).pods) == 1
    node.add(*"bcdef")
    with pytest.raises(RpcError, match="watch them instead") as error:
        await node.api.list_pods(wire.ListPodsRequest())
    assert error.value.code is Code.RESOURCE_EXHAUSTED
    async with node.telling(), node.watched() as watcher:
        assert len(await watcher.first()) == 6
