"""The cluster's picture of the node's drivers: CSINode, annotation and labels of the Node."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager

import pytest
import trio
from attrs import define, evolve, field

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.unit.node.nodes import NAME, a_node
from trio_kubelet.csi import CSIDrivers
from trio_kubelet.csi.driver import DriverClient, NodeInfo
from trio_kubelet.k8s import (
    CSI_NODES,
    NODES,
    CSINode,
    CSINodeDriver,
    Node,
    VolumeNodeResources,
)
from trio_kubelet.node.csi_node import (
    MIGRATED_ANNOTATION,
    NODE_ID_ANNOTATION,
    CSINodeInfo,
    csi_node_drivers,
    node_metadata_changes,
)
from trio_kubelet.node.reporter import NodeView
from trio_kubelet.rpc import InProcess

A = NodeInfo(node_id="n-1", max_volumes=5, topology={"example.com/zone": "a"})
B = NodeInfo(node_id="n-2")


def labelled(**labels: str) -> Node:
    node = a_node()
    return evolve(node, metadata=evolve(node.metadata, labels=labels))


def test_csi_node_has_ids_topology_keys_and_counts() -> None:
    assert csi_node_drivers({"b.example.com": B, "a.example.com": A}) == (
        CSINodeDriver(
            name="a.example.com",
            node_id="n-1",
            topology_keys=("example.com/zone",),
            allocatable=VolumeNodeResources(count=5),
        ),
        CSINodeDriver(name="b.example.com", node_id="n-2"),
    )


@pytest.mark.parametrize(
    ("labels", "nodes", "changes"),
    [
        ({}, {}, {}),
        (
            {},
            {"a": A},
            {
                "annotations": {NODE_ID_ANNOTATION: '{"a":"n-1"}'},
                "labels": {"example.com/zone": "a"},
            },
        ),
        ({"example.com/zone": "a"}, {"a": A}, {"annotations": {NODE_ID_ANNOTATION: '{"a":"n-1"}'}}),
        ({"example.com/zone": "b"}, {"a": A}, {"annotations": {NODE_ID_ANNOTATION: '{"a":"n-1"}'}}),
    ],
)
def test_a_node_gets_what_it_lacks_and_keeps_what_it_has(
    labels: dict[str, str], nodes: dict[str, NodeInfo], changes: dict[str, object]
) -> None:
    assert node_metadata_changes(labelled(**labels), nodes, {"a"}) == changes


def annotated(text: str) -> Node:
    node = a_node()
    metadata = evolve(node.metadata, annotations={NODE_ID_ANNOTATION: text})
    return evolve(node, metadata=metadata)


@pytest.mark.parametrize(
    ("found", "nodes", "own", "told"),
    [
        ('{"a":"n-1"}', {}, {"a"}, None),
        ('{"a":"n-9","b":"n-2"}', {"a": A}, {"a"}, '{"a":"n-1","b":"n-2"}'),
        ('{"a":"n-1","b":"n-2"}', {}, {"a"}, '{"b":"n-2"}'),
        ('{"a":"n-1","b":7}', {}, set(), '{"a":"n-1"}'),
        ("[]", {"a": A}, {"a"}, '{"a":"n-1"}'),
        ("no JSON", {}, set(), None),
    ],
)
def test_the_annotation_keeps_the_ids_of_drivers_that_have_not_registered(
    found: str, nodes: dict[str, NodeInfo], own: set[str], told: str | None
) -> None:
    changes = node_metadata_changes(annotated(found), nodes, own)
    assert changes["annotations"] == {NODE_ID_ANNOTATION: told}


@define
class Scene:
    """A node at an API server, and the part that writes about its drivers."""

    server: ApiServer = field(factory=ApiServer)
    drivers: CSIDrivers = field(factory=CSIDrivers)

    def driver(self, name: str, node: NodeInfo) -> AbstractContextManager[None]:
        """A driver that is registered for a while."""
        driver = DriverClient(name=name, version=(1, 12), transport=InProcess())
        return self.drivers.registered(driver, node)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """An agent, with no drivers at first."""
        view, api = NodeView(NAME), self.server.client()
        self.drivers = CSIDrivers()
        info = CSINodeInfo(self.drivers, view, api)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(view.watch, api)
            nursery.start_soon(info.run)
            yield
            nursery.cancel_scope.cancel()

    @property
    def csi_node(self) -> CSINode:
        return self.server.get(CSI_NODES, NAME)

    def told(self) -> dict[str, str]:
        return {driver.name: driver.node_id for driver in self.csi_node.spec.drivers}

    def annotated(self) -> str | None:
        """The ids in the Node's annotation."""
        return self.server.get(NODES, NAME).metadata.annotations.get(NODE_ID_ANNOTATION)


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    scene.server.create(NODES, a_node())
    return scene


async def test_the_object_is_made_before_there_is_a_driver(
    scene: Scene, autojump_clock: object
) -> None:
    async with scene.running():
        await trio.sleep(1)
        assert scene.told() == {}
        assert "kubernetes.io/gce-pd" in scene.csi_node.metadata.annotations[MIGRATED_ANNOTATION]
        (owner,) = scene.csi_node.metadata.owner_references
        assert (owner.kind, owner.name) == ("Node", NAME)


async def test_drivers_come_and_go(scene: Scene, autojump_clock: object) -> None:
    async with scene.running():
        with scene.driver("a.x", A), scene.driver("b.x", B):
            await trio.sleep(1)
            assert scene.told() == {"a.x": "n-1", "b.x": "n-2"}
            node = scene.server.get(NODES, NAME)
            assert node.metadata.labels["example.com/zone"] == "a"
            assert node.metadata.annotations[NODE_ID_ANNOTATION] == '{"a.x":"n-1","b.x":"n-2"}'
        await trio.sleep(1)
        assert scene.told() == {}
        node = scene.server.get(NODES, NAME)
        assert NODE_ID_ANNOTATION not in node.metadata.annotations
        assert node.metadata.labels["example.com/zone"] == "a"


async def test_what_is_told_of_a_driver_stays_until_it_has_registered_with_a_new_agent(
    scene: Scene, autojump_clock: object
) -> None:
    """While it has not, the controller that attaches its volumes asks for the node's id."""
    with ExitStack() as drivers:
        async with scene.running():
            for name, node in (("a.x", A), ("b.x", B), ("c.x", B)):
                drivers.enter_context(scene.driver(name, node))
            await trio.sleep(1)
    async with scene.running():
        await trio.sleep(1)
        assert scene.told() == {"a.x": "n-1", "b.x": "n-2", "c.x": "n-2"}
        assert scene.annotated() == '{"a.x":"n-1","b.x":"n-2","c.x":"n-2"}'
        with scene.driver("a.x", evolve(A, node_id="n-9")):
            await trio.sleep(1)
            assert scene.told() == {"a.x": "n-9", "b.x": "n-2", "c.x": "n-2"}
        with scene.driver("b.x", B):
            pass  # It comes and goes before anything is written.
        await trio.sleep(1)
        assert scene.told() == {"c.x": "n-2"}
        assert scene.annotated() == '{"c.x":"n-2"}'


async def test_a_driver_that_changes_is_taken_out_first(
    scene: Scene, autojump_clock: object
) -> None:
    """The API server refuses to change what is told of a driver."""
    async with scene.running():
        with scene.driver("b.x", B), scene.driver("a.x", A):
            await trio.sleep(1)
            before = len(scene.server.requests)
            with scene.driver("a.x", evolve(A, node_id="n-9", max_volumes=9)):
                await trio.sleep(1)
                writes = [
                    each.verb
                    for each in scene.server.requests[before:]
                    if each.resource == "csinodes" and each.verb != "get"
                ]
                assert writes == ["update", "update"]
                driver, other = scene.csi_node.spec.drivers
                assert (driver.node_id, other.node_id) == ("n-9", "n-2")
                assert driver.allocatable == VolumeNodeResources(count=9)


async def test_an_api_server_that_is_away_is_waited_for(
    scene: Scene, autojump_clock: object
) -> None:
    async with scene.running():
        await trio.sleep(1)
        scene.server.faults.outage = True
        with scene.driver("a.x", A):
            await trio.sleep(120)
            assert scene.told() == {}
            scene.server.faults.outage = False
            await trio.sleep(60)
            assert scene.told() == {"a.x": "n-1"}


async def test_labels_that_are_refused_keep_no_driver_from_being_told(
    scene: Scene, autojump_clock: object
) -> None:
    fault = RequestFault(verb="patch", resource="nodes", code=403, reason="Forbidden")
    scene.server.faults.add(fault)
    async with scene.running():
        with scene.driver("a.x", A):
            await trio.sleep(60)
            assert scene.told() == {"a.x": "n-1"}
            refused = [each for each in scene.server.requests if each.verb == "patch"]
            assert len(refused) == 1
