"""The space of drivers' volumes: asked for in turns, shown as it was told last."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from lab.csi_driver import BYTES, INODES, MEASURES
from tests.trio_clock import TrioClock
from trio_kubelet.csi import CSIDrivers, DriverClient, VolumeOfPod, VolumeUsages
from trio_kubelet.csi.driver import NodeInfo
from trio_kubelet.metrics.state import volume_families
from trio_kubelet.metrics.text import exposition
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.stats.pods import volumes_of_drivers

NUMBERS = (
    csi.VolumeUsage(total=100, available=60, used=40, unit=BYTES),
    csi.VolumeUsage(total=10, available=7, used=3, unit=INODES),
)


@define
class Driver(csi.NodeBase):
    """A driver that tells the same of each volume."""

    usage: tuple[csi.VolumeUsage, ...] = NUMBERS
    capabilities: tuple[csi.NodeServiceCapabilityRpcType, ...] = (MEASURES,)
    fails: bool = False
    hangs: bool = False
    asked: list[csi.NodeGetVolumeStatsRequest] = field(factory=list)

    async def node_get_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        await trio.lowlevel.checkpoint()
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(),  # of a kind that is not known yet
                *(
                    csi.NodeServiceCapability(rpc=csi.NodeServiceCapabilityRpc(type=each))
                    for each in self.capabilities
                ),
            ]
        )

    async def node_get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        await trio.lowlevel.checkpoint()
        self.asked.append(request)
        if self.hangs:
            await trio.sleep_forever()
        if self.fails:
            raise RpcError(Code.INTERNAL, "no")
        return csi.NodeGetVolumeStatsResponse(usage=list(self.usage))


@define
class Node:
    """The drivers of a node, and what is known of their volumes."""

    drivers: CSIDrivers = field(factory=CSIDrivers)
    usages: VolumeUsages = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.usages = VolumeUsages(self.drivers, TrioClock(), 60.0)

    @contextmanager
    def driver(self, driver: Driver, name: str = "d") -> Iterator[None]:
        client = DriverClient(name=name, version=(1, 12), transport=InProcess(driver))
        with self.drivers.registered(client, NodeInfo(node_id="n")):
            yield

    def names(self) -> list[str]:
        return [each.volume.name for each in self.usages.measured()]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        node = Node()
        nursery.start_soon(node.usages.run)
        yield node
        nursery.cancel_scope.cancel()


def volume(name: str = "v", driver: str = "d", uid: str = "u", claim: str = "") -> VolumeOfPod:
    return VolumeOfPod(
        driver=driver,
        volume_id=f"id of {name}",
        path=f"/pods/{uid}/{name}",
        pod_uid=uid,
        namespace="default",
        name=name,
        staging_path="/stage",
        claim=claim,
    )


async def test_what_a_driver_tells_is_that_of_the_volume(
    autojump_clock: MockClock, node: Node
) -> None:
    driver = Driver()
    with node.driver(driver):
        node.usages.published(volume(claim="data"))
        await trio.sleep(61)
    (request,) = driver.asked
    assert (request.volume_id, request.volume_path) == ("id of v", "/pods/u/v")
    assert request.staging_target_path == "/stage"
    (found,) = volumes_of_drivers(node.usages.measured())["u"]
    assert (found.name, found.claim, found.ephemeral) == ("v", "data", False)
    told = found.filesystem
    assert (told.capacity, told.available, told.used) == (100, 60, 40)
    assert (told.inodes, told.inodes_free, told.inodes_used) == (10, 7, 3)


async def test_a_volume_is_asked_for_once_in_a_period_until_it_is_taken_away(
    autojump_clock: MockClock, node: Node
) -> None:
    driver = Driver()
    with node.driver(driver):
        for name in ("a", "b"):
            node.usages.published(volume(name))
        await trio.sleep(181)
        assert [each.volume_id for each in driver.asked] == ["id of a", "id of b"] * 3
        node.usages.unpublished("u", "/pods/u/a")
        assert node.names() == ["b"]
        await trio.sleep(60)
        assert driver.asked[-1].volume_id == "id of b"
        assert len(driver.asked) == 7
        node.usages.unpublished("u")
        assert node.names() == []


@pytest.mark.parametrize(
    "usage", [(), (csi.VolumeUsage(total=-1, unit=BYTES),)], ids=["nothing", "negative"]
)
async def test_figures_of_no_use_are_not_shown(
    autojump_clock: MockClock, node: Node, usage: tuple[csi.VolumeUsage, ...]
) -> None:
    driver = Driver()
    with node.driver(driver):
        node.usages.published(volume())
        await trio.sleep(61)
        assert node.names() == ["v"]
        driver.usage = usage
        await trio.sleep(60)
        assert node.names() == []


async def test_a_driver_that_fails_is_asked_again_at_the_next_turn(
    autojump_clock: MockClock, node: Node
) -> None:
    driver = Driver(fails=True)
    with node.driver(driver):
        node.usages.published(volume("a"))
        node.usages.published(volume("b"))
        await trio.sleep(61)
        assert (len(driver.asked), node.names()) == (2, [])
        driver.fails = False
        await trio.sleep(60)
        assert node.names() == ["a", "b"]


async def test_a_driver_that_hangs_leaves_the_volumes_of_others_alone(
    autojump_clock: MockClock, node: Node
) -> None:
    hanging, good = Driver(hangs=True), Driver()
    with node.driver(hanging, "hangs"), node.driver(good, "good"):
        node.usages.published(volume("a", "hangs"))
        node.usages.published(volume("b", "good"))
        await trio.sleep(119)
        assert node.names() == ["b"]
        assert (len(hanging.asked), len(good.asked)) == (1, 1)


async def test_a_driver_that_tells_nothing_of_volumes_or_has_gone_is_not_asked(
    autojump_clock: MockClock, node: Node
) -> None:
    driver = Driver(capabilities=())
    with node.driver(driver):
        node.usages.published(volume())
        await trio.sleep(61)
    assert driver.asked == []
    with node.driver(Driver()):
        await trio.sleep(60)
        assert node.names() == ["v"]
    await trio.sleep(60)
    assert node.names() == []


async def test_a_claim_has_its_figures_once_in_the_metrics(
    autojump_clock: MockClock, node: Node
) -> None:
    with node.driver(Driver()):
        for uid in ("a", "b"):
            node.usages.published(volume(uid=uid, claim="data"))
        node.usages.published(volume("own"))
        await trio.sleep(61)
    labels = '{namespace="default",persistentvolumeclaim="data"}'
    lines = exposition(volume_families(node.usages.measured())).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        f"kubelet_volume_stats_available_bytes{labels} 60",
        f"kubelet_volume_stats_capacity_bytes{labels} 100",
        f"kubelet_volume_stats_inodes{labels} 10",
        f"kubelet_volume_stats_inodes_free{labels} 7",
        f"kubelet_volume_stats_inodes_used{labels} 3",
        f"kubelet_volume_stats_used_bytes{labels} 40",
    ]
