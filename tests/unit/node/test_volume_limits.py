"""The number of volumes that a node can have of a driver, from the driver to CSINode."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.unit.node.nodes import NAME, a_node
from trio_kubelet.csi import CSIDrivers, DriverClient, DriverSettings, VolumeLimits
from trio_kubelet.csi.driver import NodeInfo
from trio_kubelet.k8s import CSI_DRIVERS, CSI_NODES, NODES, CSIDriver, CSIDriverSpec, ObjectMeta
from trio_kubelet.node.csi_node import CSINodeInfo
from trio_kubelet.node.reporter import NodeView
from trio_kubelet.rpc import InProcess
from trio_kubelet.rpc.stubs.csi import v1 as csi

PERIOD = 30.0


@define
class Driver(csi.NodeBase):
    """A driver that can have so many volumes at the node."""

    count: int = 5
    hangs: bool = False
    asked: int = 0

    async def node_get_info(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        return csi.NodeGetInfoResponse(node_id="n", max_volumes_per_node=self.count)


@define
class Scene:
    """A node at an API server, whose drivers are asked again as the cluster says."""

    server: ApiServer = field(factory=ApiServer)
    drivers: CSIDrivers = field(factory=CSIDrivers)
    limits: VolumeLimits = field(init=False)

    def describe(self, name: str, period: float | None = PERIOD) -> None:
        seconds = None if period is None else int(period)
        spec = CSIDriverSpec(node_allocatable_update_period_seconds=seconds)
        self.server.create(CSI_DRIVERS, CSIDriver(metadata=ObjectMeta(name=name), spec=spec))

    @contextmanager
    def driver(self, name: str = "a.x") -> Iterator[Driver]:
        """A driver that is registered for a while."""
        driver = Driver()
        client = DriverClient(name=name, version=(1, 12), transport=InProcess(driver))
        with self.drivers.registered(client, NodeInfo(node_id="n", max_volumes=driver.count)):
            yield driver

    def count(self, name: str = "a.x") -> int | None:
        """The number that CSINode tells of a driver."""
        drivers = self.server.get(CSI_NODES, NAME).spec.drivers
        allocatable = {each.name: each.allocatable for each in drivers}[name]
        return None if allocatable is None else allocatable.count

    def writes(self) -> list[str]:
        return [
            each.verb
            for each in self.server.requests
            if each.resource == "csinodes" and each.verb != "get"
        ]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    scene.server.create(NODES, a_node())
    view, api = NodeView(NAME), scene.server.client()
    settings = DriverSettings(api)
    scene.limits = VolumeLimits(scene.drivers, settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(view.watch, api)
        nursery.start_soon(settings.run)
        nursery.start_soon(CSINodeInfo(scene.drivers, view, api).run)
        nursery.start_soon(scene.limits.run)
        yield scene
        nursery.cancel_scope.cancel()


async def test_a_number_that_changes_is_told_in_place(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe("a.x")
    with scene.driver() as driver, scene.driver("b.x") as other:
        await trio.sleep(1)
        assert (scene.count(), scene.count("b.x")) == (5, 5)
        before = scene.writes()
        driver.count = other.count = 3
        await trio.sleep(PERIOD)
        assert scene.writes()[len(before) :] == ["update"]
        assert (scene.count(), scene.count("b.x")) == (3, 5), "nobody wants to know of the other"
        await trio.sleep(10 * PERIOD)
        assert scene.writes()[len(before) :] == ["update"]
        assert driver.asked >= 10
        assert other.asked == 0


async def test_a_driver_that_hangs_keeps_its_number_and_disturbs_no_other(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe("a.x")
    scene.describe("b.x")
    with scene.driver() as driver, scene.driver("b.x") as other:
        driver.hangs, other.count = True, 9
        await trio.sleep(2 * PERIOD)
        assert (scene.count(), scene.count("b.x")) == (5, 9)
        driver.hangs, driver.count = False, -1
        await trio.sleep(300)
        assert scene.count() == 5, "a number that is none"
        driver.count = 7
        await trio.sleep(2 * PERIOD)
        assert scene.count() == 7


async def test_it_is_asked_at_once_on_demand_and_never_without_a_period(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe("a.x")
    scene.describe("b.x", None)
    with scene.driver() as driver, scene.driver("b.x") as other:
        await trio.sleep(1)
        assert scene.limits.may_change("a.x")
        assert not scene.limits.may_change("b.x")
        driver.count = other.count = 1
        for name in ("a.x", "b.x", "c.x"):
            scene.limits.ask(name)
        await trio.sleep(1)
        assert (scene.count(), scene.count("b.x")) == (1, 5)
        scene.server.delete(CSI_DRIVERS, "a.x")
        driver.asked = 0
        await trio.sleep(10 * PERIOD)
        assert driver.asked == 0


async def test_an_older_api_server_gets_the_driver_anew(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe("a.x")
    with scene.driver() as driver:
        await trio.sleep(1)
        before = scene.writes()
        refusal = RequestFault(
            verb="update", resource="csinodes", code=422, reason="Invalid", times=1
        )
        scene.server.faults.add(refusal)
        driver.count = 3
        await trio.sleep(PERIOD)
        assert scene.writes()[len(before) :] == ["update"] * 3
        assert scene.count() == 3
