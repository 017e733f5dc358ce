"""The drivers of the node: who is registered, who serves, and who is refused."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, field

from lab.csi_driver import Behaviour, LabDriver, serve_driver
from trio_kubelet.csi import CSIDrivers, DriverCall
from trio_kubelet.csi.driver import NodeInfo, is_driver_name, newest_version
from trio_kubelet.plugins import Plugin, PluginRefused
from trio_kubelet.rpc import Code, RpcError, open_rpc_loop

NAME = "lab.csi.example.com"


@pytest.mark.parametrize(
    ("versions", "newest"),
    [
        (("1.0.0",), (1, 0, 0)),
        (("v1.9.0", "1.10.0", "0.3.0"), (1, 10, 0)),
        (("2.0.0", "1.1.0", "nonsense"), (1, 1, 0)),
        (("1",), (1,)),
        (("1.2.0-rc1",), (1, 2, 0)),
    ],
)
def test_the_newest_version_of_csi_1_counts(
    versions: tuple[str, ...], newest: tuple[int, ...]
) -> None:
    assert newest_version(versions) == newest


@pytest.mark.parametrize(
    ("versions", "complaint"),
    [
        (("2.0.0",), "could not find a highest supported version"),
        (("nonsense", ""), "could not find a highest supported version"),
        (("0.3.0",), "highest supported version reported by driver is 0.3.0, must be v1.x"),
    ],
)
def test_a_driver_without_a_version_of_csi_1_is_refused(
    versions: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        newest_version(versions)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("a.example.com", True),
        ("A.example.com", True),
        ("a" * 63, True),
        ("a" * 64, False),
        ("../../etc", False),
        ("a/b", False),
        ("", False),
        ("a..b", False),
    ],
)
def test_the_name_of_a_driver_is_a_domain(name: str, may: bool) -> None:
    assert is_driver_name(name) is may


@define
class Scene:
    """Drivers on sockets, and those that are registered."""

    root: Path
    nursery: trio.Nursery
    drivers: CSIDrivers = field(factory=CSIDrivers)

    async def plugin(
        self, where: str, *, versions: tuple[str, ...] = ("1.12.0",), **behaviour: object
    ) -> Plugin:
        folder = self.root / where
        folder.mkdir()
        driver = LabDriver(folder, Behaviour(**behaviour))  # type: ignore[arg-type]
        await self.nursery.start(serve_driver, driver, None)
        return Plugin(
            type="CSIPlugin",
            name=driver.behaviour.name,
            endpoint=str(driver.socket),
            versions=versions,
            socket=folder / "reg.sock",
        )


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        yield Scene(tmp_path_factory.mktemp("d"), nursery)
        nursery.cancel_scope.cancel()


async def test_a_driver_is_asked_what_it_calls_the_node(scene: Scene) -> None:
    topology = {"topology.example.com/zone": "a"}
    plugin = await scene.plugin("a", node_id="n-1", max_volumes=7, topology=topology)
    async with scene.drivers.handle(plugin):
        assert scene.drivers.nodes() == {
            NAME: NodeInfo(node_id="n-1", max_volumes=7, topology=topology)
        }
    assert scene.drivers.nodes() == {}


async def test_calls_to_a_driver_are_told_with_their_paths(scene: Scene) -> None:
    plugin, told = await scene.plugin("a"), list[DriverCall]()
    scene.drivers.on_call.add(told.append)
    LabDriver(scene.root / "a").set_faults(NodeGetCapabilities={"fail": "INTERNAL: no"})
    async with scene.drivers.handle(plugin):
        with pytest.raises(RpcError):
            await (await scene.drivers.wait(NAME)).capabilities()
    assert [(each.driver, each.method) for each in told] == [
        (NAME, "/csi.v1.Node/NodeGetInfo"),
        (NAME, "/csi.v1.Node/NodeGetCapabilities"),
    ]
    assert [each.error and each.error.code for each in told] == [None, Code.INTERNAL]


async def test_who_waits_for_a_driver_gets_it_when_it_is_registered(scene: Scene) -> None:
    plugin = await scene.plugin("a")
    got = []

    async def wait() -> None:
        got.append((await scene.drivers.wait(NAME)).name)

    scene.nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert got == []
    async with scene.drivers.handle(plugin):
        await trio.testing.wait_all_tasks_blocked()
        assert got == [NAME]


async def test_of_two_sockets_of_a_driver_the_later_serves_until_it_goes(scene: Scene) -> None:
    old, new = await scene.plugin("a", node_id="old"), await scene.plugin("b", node_id="new")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scene.drivers.handle(old))
        async with scene.drivers.handle(new):
            assert scene.drivers.nodes()[NAME].node_id == "new"
        assert scene.drivers.nodes()[NAME].node_id == "old"
        # The order in which they go does not matter.
        async with AsyncExitStack() as later:
            await later.enter_async_context(scene.drivers.handle(new))
            await stack.aclose()
            assert scene.drivers.nodes()[NAME].node_id == "new"
    assert scene.drivers.get(NAME) is None


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        ({"name": "../../etc"}, "The name must be a domain of at most 63 characters"),
        ({"versions": ()}, "Plugin returned an empty list for supported versions"),
        ({"versions": ("2.0.0",)}, "None of the versions specified"),
        ({"node_id": ""}, "node_id is empty"),
        ({"node_id": "x" * 257}, "node_id has more than 256 bytes"),
        ({"max_volumes": -1}, "max_volumes_per_node is -1, must not be negative"),
        ({"topology": {"no label": "a"}}, "of accessible_topology cannot be a label"),
        ({"topology": {"a/b": "no value!"}}, "of accessible_topology cannot be a label"),
    ],
)
async def test_a_driver_that_says_nonsense_is_refused(
    scene: Scene, behaviour: dict[str, object], complaint: str
) -> None:
    plugin = await scene.plugin("a", **behaviour)  # type: ignore[arg-type]
    with pytest.raises(PluginRefused, match=complaint):
        async with scene.drivers.handle(plugin):
            pass
    assert scene.drivers.nodes() == {}


async def test_an_older_version_than_the_one_registered_is_refused(scene: Scene) -> None:
    async with scene.drivers.handle(await scene.plugin("a", versions=("1.9.0",))):
        with pytest.raises(PluginRefused, match="already registered with a higher supported"):
            async with scene.drivers.handle(await scene.plugin("b", versions=("1.3.0",))):
                pass
        assert scene.drivers.get(NAME) is not None
