"""The newest known version of the node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import evolve
from trio.testing import MockClock

from tests.apiserver.server import ApiServer
from tests.unit.node.nodes import NAME, a_node
from trio_kubelet.k8s import NODES, Node
from trio_kubelet.node.reporter import NodeView


@asynccontextmanager
async def watched(server: ApiServer) -> AsyncIterator[NodeView]:
    view = NodeView(NAME)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.watch, server.client())
        yield view
        nursery.cancel_scope.cancel()


def version(node: Node, number: int, uid: str = "node-uid") -> Node:
    metadata = evolve(node.metadata, resource_version=str(number), uid=uid)
    return evolve(node, metadata=metadata)


async def test_a_node_is_known_as_soon_as_it_is_made(autojump_clock: MockClock) -> None:
    server = ApiServer()
    async with watched(server) as view:
        await trio.sleep(1)
        assert server.watches
        assert view.current is None
        created = server.create(NODES, a_node())
        assert (await view.wait_known()).metadata.uid == created.metadata.uid


async def test_another_node_is_none_of_its_business(autojump_clock: MockClock) -> None:
    server = ApiServer()
    node = a_node()
    server.create(NODES, evolve(node, metadata=evolve(node.metadata, name="other")))
    async with watched(server) as view:
        await trio.sleep(1)
        assert server.watches
        assert view.current is None


async def test_a_deleted_node_is_not_known_until_it_is_made_again(
    autojump_clock: MockClock,
) -> None:
    server = ApiServer()
    server.create(NODES, a_node())
    seen: list[Node | None] = []
    async with watched(server) as view:
        await view.wait_known()
        view.on_version.add(seen.append)
        server.delete(NODES, NAME)
        await trio.sleep(1)
        assert view.current is None
        server.create(NODES, a_node())
        await view.wait_known()
    assert [node is None for node in seen] == [True, False]


def test_an_answer_to_a_write_is_newer_than_what_the_watch_shows_later() -> None:
    view = NodeView(NAME)
    view.offer(version(a_node(), 10))
    view.offer(version(a_node(labels={"a": "b"}), 12))
    view.offer(version(a_node(), 11))
    assert view.current is not None
    assert view.current.metadata.labels == {"a": "b"}


def test_a_new_node_of_the_same_name_replaces_the_old_one() -> None:
    view = NodeView(NAME)
    view.offer(version(a_node(), 10))
    view.offer(version(a_node(), 9, uid="another"))
    assert view.current is not None
    assert view.current.metadata.uid == "another"
