"""How device plugins register over real sockets, who is refused, and with which words."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, evolve

from lab.device_plugin import RESOURCE, DeviceBehaviour, LabDevicePlugin
from tests.trio_clock import TrioClock
from trio_kubelet.devices import DeviceManager, DevicePluginRegistration, DevicePlugins
from trio_kubelet.devices import DeviceRecords as Records
from trio_kubelet.devices.client import OPTIONS_SECONDS
from trio_kubelet.devices.registration import AT_ONCE
from trio_kubelet.kernel.unix_sockets import bind_unix
from trio_kubelet.plugins import Plugin, PluginRefused
from trio_kubelet.rpc import Channel, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.stubs import v1beta1 as wire
from trio_kubelet.telemetry import Journal

SECONDS = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: there are sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="dp-"))
    yield path
    shutil.rmtree(path)


@define
class Scene:
    """An agent that devices register with, and who registered."""

    folder: Path
    manager: DeviceManager
    registration: DevicePluginRegistration
    nursery: trio.Nursery
    changed: trio.Event

    async def until(self, resource: str, amounts: tuple[int, int]) -> None:
        """Wait until a resource has so many devices, and so many healthy ones."""
        with trio.fail_after(SECONDS):
            while self.manager.plugins.amounts().get(resource) != amounts:
                await self.changed.wait()

    def plugin(self, **devices: str) -> LabDevicePlugin:
        home = self.folder / "plugin"
        home.mkdir(exist_ok=True)
        plugin = LabDevicePlugin(home, self.folder, DeviceBehaviour())
        plugin.set_devices(devices)
        return plugin

    async def refusal(self, **request: str) -> str:
        """Register, and return what the agent has against it."""
        asked = wire.RegisterRequest(version="v1beta1", endpoint="p.sock", resource_name=RESOURCE)
        for name, value in request.items():
            setattr(asked, name, value)
        channel = Channel(str(self.folder / "kubelet.sock"))
        with pytest.raises(RpcError) as error:
            await channel.unary(wire.RegistrationStub.register, asked, deadline_seconds=SECONDS)
        return error.value.message


async def until_there(path: Path) -> None:
    """Wait until somebody has made a socket."""
    with trio.fail_after(SECONDS):
        while not path.exists():  # noqa: ASYNC110, ASYNC240
            await trio.sleep(0.01)


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    plugins = DevicePlugins(Journal(TrioClock()))
    manager = DeviceManager(plugins, Records(folder), wait_seconds=10)
    registration = DevicePluginRegistration(folder, plugins)
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        made = Scene(folder, manager, registration, nursery, trio.Event())

        def tell() -> None:
            made.changed.set()
            made.changed = trio.Event()

        plugins.on_change.add(tell)
        nursery.start_soon(manager.run)
        await plugins.running.wait()
        nursery.start_soon(registration.run)
        await until_there(folder / "kubelet.sock")
        yield made
        nursery.cancel_scope.cancel()


async def test_a_plugin_that_registers_by_a_call_is_listed_and_followed(folder: Path) -> None:
    async with scene(folder) as agent:
        plugin = agent.plugin(a="Healthy", b="Unhealthy")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plugin.run)
            await agent.until(RESOURCE, (2, 1))
            plugin.set_devices({"a": "Healthy", "b": "Healthy", "c": "Healthy"})
            await agent.until(RESOURCE, (3, 3))
            nursery.cancel_scope.cancel()
        await agent.until(RESOURCE, (3, 0))


async def test_what_a_plugin_must_not_ask_for_is_refused_in_the_words_of_the_go_kubelet(
    folder: Path,
) -> None:
    async with scene(folder) as agent:
        requests = list[str]()
        agent.registration.on_request.add(requests.append)
        assert await agent.refusal(version="v1alpha1") == (
            'requested API version "v1alpha1" is not supported by kubelet. '
            'Supported version is ["v1beta1"]'
        )
        for name in ("gpu", "kubernetes.io/gpu", "requests.example.com/a", "a/b/c", "x.y/\0"):
            message = await agent.refusal(resource_name=name)
            assert message == f'the ResourceName "{name}" is invalid'
        for endpoint in ("", "/run/x.sock", "../x.sock"):
            assert "is no name of a socket in" in await agent.refusal(endpoint=endpoint)
        words = await agent.refusal(endpoint="gone.sock")
        assert words.startswith(
            "failed to get device plugin options: rpc error: code = Unavailable"
        )
        assert requests == [""] * 10
        assert not agent.manager.plugins.amounts()


async def test_a_plugin_of_the_registry_is_registered_while_its_socket_is_there(
    folder: Path,
) -> None:
    async with scene(folder) as agent:
        plugin = agent.plugin(a="Healthy")
        registry = folder / "r.sock"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plugin.run, registry)
            await until_there(registry)
            told = Plugin(
                type="DevicePlugin",
                name=RESOURCE,
                endpoint=str(plugin.socket),
                versions=("v1beta1",),
                socket=registry,
            )
            async with agent.registration.handle(told):
                await agent.until(RESOURCE, (1, 1))
            await agent.until(RESOURCE, (1, 0))
            for wrong, words in (
                (evolve(told, versions=("v2",)), "is not among plugin supported versions [v2]"),
                (
                    evolve(told, name="gpu"),
                    "invalid name of device plugin socket: the ResourceName",
                ),
            ):
                with pytest.raises(PluginRefused) as refused:
                    async with agent.registration.handle(wrong):
                        pass
                assert words in str(refused.value)
            nursery.cancel_scope.cancel()


async def test_at_the_start_sockets_of_plugins_go_and_other_files_stay(folder: Path) -> None:
    bind_unix(folder / "old.sock", mode=0o600, backlog=1).close()
    (folder / "kubelet_internal_checkpoint").write_text("{}")
    async with scene(folder):
        assert not (folder / "old.sock").exists()
        assert (folder / "kubelet.sock").is_socket()
        assert (folder / "kubelet_internal_checkpoint.damaged").read_text() == "{}"


async def test_a_plugin_that_hangs_delays_no_registration_of_another(folder: Path) -> None:
    async with scene(folder) as agent:
        hanging, good = agent.plugin(a="Healthy"), agent.plugin(a="Healthy")
        hanging.name, hanging.folder = "hanging.sock", folder / "hanging"
        hanging.folder.mkdir()
        hanging.set_faults(GetDevicePluginOptions={"hang": True})
        contracts = (wire.DevicePluginBase,)
        other = wire.RegisterRequest(
            version="v1beta1", endpoint=hanging.name, resource_name="other.example.com/device"
        )
        channel = Channel(str(folder / "kubelet.sock"))
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, [hanging], hanging.socket, contracts=contracts))
            for _ in range(3 * AT_ONCE):
                nursery.start_soon(channel.unary, wire.RegistrationStub.register, other)
            with trio.fail_after(SECONDS):
                while not hanging.calls("GetDevicePluginOptions"):  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.start_soon(good.run)
            with trio.fail_after(OPTIONS_SECONDS / 2):
                await agent.until(RESOURCE, (1, 1))
            assert len(hanging.calls("GetDevicePluginOptions")) == 1
            nursery.cancel_scope.cancel()
