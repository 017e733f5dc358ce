"""Plugins that register, go, come back, hang and lie, each on a real socket."""

import itertools
import shutil
import socket as sockets
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from attrs import define, field
from trio.testing import MockClock

from lab.csi_driver import Behaviour, LabDriver, serve_driver
from trio_kubelet.plugins import Plugin, PluginRefused, PluginRegistry
from trio_kubelet.plugins import registry as registry_module
from trio_kubelet.plugins.registry import PAUSE_SECONDS
from trio_kubelet.plugins.sockets import PluginSocket, SocketWatch
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.rpc.stubs import pluginregistration as registration

SECONDS = 20.0


@define
class Scene:
    """A folder with a registry that follows it, and the plugins that are registered."""

    root: Path
    plugins: list[Plugin] = field(factory=list)
    refusal: str = ""
    fails_at_end: bool = False
    """A task of the handler fails when it is cancelled."""
    changed: trio.Event = field(factory=trio.Event)
    nursery: trio.Nursery | None = None

    @property
    def folder(self) -> Path:
        return self.root / "r"

    @asynccontextmanager
    async def handle(self, plugin: Plugin) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        if self.refusal:
            raise PluginRefused(self.refusal)
        async with trio.open_nursery() as nursery:
            if self.fails_at_end:
                nursery.start_soon(fail_at_end)
            self.plugins.append(plugin)
            self._changed()
            try:
                yield
            finally:
                self.plugins.remove(plugin)
                self._changed()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.folder.mkdir(exist_ok=True)
        registry = PluginRegistry(self.folder, {"CSIPlugin": self.handle})
        async with open_rpc_loop(), trio.open_nursery() as nursery:
            self.nursery = nursery
            nursery.start_soon(registry.run)
            yield
            nursery.cancel_scope.cancel()

    def driver(self, where: str = "d", **behaviour: Any) -> LabDriver:
        folder = self.root / where
        folder.mkdir(exist_ok=True)
        return LabDriver(folder, Behaviour(**behaviour))

    async def start(self, driver: LabDriver, socket: str = "a.sock") -> trio.CancelScope:
        """Serve a driver with its socket in the registry; cancel what is returned to end it."""
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await serve_driver(driver, self.folder / socket, task_status=task_status)

        assert self.nursery is not None
        await self.nursery.start(run)
        return scope

    async def until(self, is_so: Callable[[], bool]) -> None:
        with trio.fail_after(SECONDS):
            while not is_so():
                await self.changed.wait()

    def names(self) -> list[str]:
        return [plugin.name for plugin in self.plugins]

    def _changed(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("p"))


async def fail_at_end() -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise ValueError("it does not end well")


async def told(driver: LabDriver) -> registration.RegistrationStatus:
    """What a plugin is told first of its registration."""
    with trio.fail_after(SECONDS):
        while not driver.notified:
            await driver.was_notified.wait()
    return driver.notified[0]


async def test_a_plugin_that_comes_is_registered_and_told_so(scene: Scene) -> None:
    async with scene.running():
        driver = scene.driver()
        await scene.start(driver)
        await scene.until(lambda: scene.names() == ["lab.csi.example.com"])
        assert (await told(driver)).plugin_registered
    (said,) = driver.notified
    assert said.error == ""


async def test_a_plugin_is_known_by_type_name_endpoint_and_versions(scene: Scene) -> None:
    async with scene.running():
        driver = scene.driver(name="a.example.com", versions=("1.0.0", "1.9.0"))
        await scene.start(driver)
        await scene.until(lambda: bool(scene.plugins))
        assert scene.plugins == [
            Plugin(
                type="CSIPlugin",
                name="a.example.com",
                endpoint=str(driver.socket),
                versions=("1.0.0", "1.9.0"),
                socket=scene.folder / "a.sock",
            )
        ]


async def test_without_an_endpoint_the_socket_of_the_registration_is_it(scene: Scene) -> None:
    async with scene.running():
        await scene.start(scene.driver(endpoint=""))
        await scene.until(lambda: bool(scene.plugins))
        assert scene.plugins[0].endpoint == str(scene.folder / "a.sock")


async def test_a_socket_that_is_there_at_the_start_is_registered(scene: Scene) -> None:
    scene.folder.mkdir()
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        driver = scene.driver()
        await nursery.start(partial(serve_driver, driver, scene.folder / "a.sock"))
        async with scene.running():
            await scene.until(lambda: bool(scene.plugins))
        nursery.cancel_scope.cancel()


async def test_a_plugin_whose_socket_goes_is_deregistered_and_comes_back(scene: Scene) -> None:
    async with scene.running():
        for _ in range(3):
            running = await scene.start(scene.driver())
            await scene.until(lambda: bool(scene.plugins))
            running.cancel()
            await scene.until(lambda: not scene.plugins)


async def test_a_handler_that_fails_as_its_plugin_goes_ends_neither_itself_nor_others(
    scene: Scene,
) -> None:
    scene.fails_at_end = True
    async with scene.running():
        await scene.start(scene.driver("other", name="other.example.com"), "other.sock")
        for _ in range(2):
            running = await scene.start(scene.driver())
            await scene.until(lambda: len(scene.plugins) == 2)
            running.cancel()
            await scene.until(lambda: scene.names() == ["other.example.com"])


async def test_a_socket_that_is_replaced_is_registered_anew(scene: Scene) -> None:
    async with scene.running():
        await scene.start(scene.driver("old", name="old.example.com"))
        await scene.until(lambda: scene.names() == ["old.example.com"])
        await scene.start(scene.driver("new", name="new.example.com"), "b.sock")
        await scene.until(lambda: len(scene.plugins) == 2)
        (scene.folder / "b.sock").rename(scene.folder / "a.sock")
        await scene.until(lambda: scene.names() == ["new.example.com"])


async def test_sockets_in_subfolders_count_also_those_made_later(scene: Scene) -> None:
    async with scene.running():
        folder = scene.folder / "x" / "y"
        folder.mkdir(parents=True)
        await scene.start(scene.driver(), "x/y/a.sock")
        await scene.until(lambda: bool(scene.plugins))
        shutil.rmtree(scene.folder / "x")
        await scene.until(lambda: not scene.plugins)


@pytest.mark.parametrize("name", [".a.sock", ".hidden/a.sock"])
async def test_names_that_begin_with_a_dot_are_passed_over(scene: Scene, name: str) -> None:
    async with scene.running():
        (scene.folder / name).parent.mkdir(exist_ok=True)
        hidden = scene.driver("hidden")
        await scene.start(hidden, name)
        await scene.start(scene.driver("seen", name="seen.example.com"), "seen.sock")
        await scene.until(lambda: scene.names() == ["seen.example.com"])
        assert hidden.notified == []


async def test_links_to_sockets_and_folders_elsewhere_are_passed_over(scene: Scene) -> None:
    async with scene.running():
        elsewhere = scene.driver("elsewhere")
        outside = scene.root / "outside"
        outside.mkdir()
        (scene.folder / "folder").symlink_to(outside)
        await scene.start(elsewhere, "../outside/a.sock")
        (scene.folder / "link.sock").symlink_to(outside / "a.sock")
        await scene.start(scene.driver("seen", name="seen.example.com"), "seen.sock")
        await scene.until(lambda: scene.names() == ["seen.example.com"])
        assert elsewhere.notified == []


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [
        (
            {"type": "DevicePlugin"},
            "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin at socket",
        ),
        ({"name": ""}, "the plugin has no name"),
        ({"name": "x" * 254}, "has more than 253 characters"),
        ({"versions": ("1.0",) * 1025}, "the plugin has more than 1024 versions"),
        ({"endpoint": "relative.sock"}, "must be of the form unix:///absolute/path"),
        ({"endpoint": "tcp://127.0.0.1:1"}, "only unix sockets are supported"),
        ({"endpoint": "/" + "x" * 120}, "path is longer than 107 bytes"),
    ],
)
async def test_a_plugin_that_is_not_registered_is_told_why(
    scene: Scene, behaviour: dict[str, Any], complaint: str
) -> None:
    async with scene.running():
        driver = scene.driver(**behaviour)
        await scene.start(driver)
        said = await told(driver)
        assert not said.plugin_registered
        assert complaint in said.error
        assert scene.plugins == []


async def test_what_the_handler_refuses_is_told_and_tried_again(scene: Scene) -> None:
    scene.refusal = "not now"
    async with scene.running():
        driver = scene.driver()
        await scene.start(driver)
        assert (await told(driver)).error == "RegisterPlugin error -- not now"
        scene.refusal = ""
        await scene.until(lambda: bool(scene.plugins))


async def test_a_plugin_that_says_nothing_holds_up_no_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "CALL_SECONDS", 0.2)
    async with scene.running():
        mute = scene.driver("mute", name="mute.example.com")
        mute.set_faults(GetInfo={"hang": True})
        await scene.start(mute, "a.sock")
        await scene.start(scene.driver("good"), "b.sock")
        await scene.until(lambda: scene.names() == ["lab.csi.example.com"])
        mute.set_faults()
        await scene.until(lambda: len(scene.plugins) == 2)


async def test_a_stale_socket_and_plain_files_hold_up_nobody(scene: Scene) -> None:
    scene.folder.mkdir()
    with sockets.socket(sockets.AF_UNIX) as stale:
        stale.bind(str(scene.folder / "stale.sock"))
    (scene.folder / "file.sock").write_text("x")
    async with scene.running():
        await scene.start(scene.driver())
        await scene.until(lambda: scene.names() == ["lab.csi.example.com"])


async def test_an_answer_of_more_than_four_mebibytes_is_not_read(scene: Scene) -> None:
    with structlog.testing.capture_logs() as logs:
        async with scene.running():
            huge = scene.driver("huge", name="huge.example.com", versions=("x" * (5 * 2**20),))
            await scene.start(huge, "huge.sock")
            with trio.fail_after(SECONDS):
                while not any("received message larger than max" in str(each) for each in logs):
                    await trio.testing.wait_all_tasks_blocked(0.01)
            await scene.start(scene.driver("good"), "b.sock")
            await scene.until(lambda: scene.names() == ["lab.csi.example.com"])


async def test_bytes_that_are_no_grpc_hold_up_nobody(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "CALL_SECONDS", 0.5)
    scene.folder.mkdir()
    listener = trio.socket.socket(sockets.AF_UNIX)
    await listener.bind(str(scene.folder / "noise.sock"))
    listener.listen()

    async def make_noise() -> None:
        while True:
            stream, _ = await listener.accept()
            with stream:
                await stream.send(struct.pack(">I", 0xFFFFFFFF) * 100)

    async with scene.running():
        assert scene.nursery is not None
        scene.nursery.start_soon(make_noise)
        await scene.start(scene.driver())
        await scene.until(lambda: scene.names() == ["lab.csi.example.com"])
    listener.close()


async def test_a_folder_that_changes_all_the_time_is_looked_at_now_and_then(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[float]()

    class Changing(SocketWatch):
        def look(self) -> tuple[PluginSocket, ...]:
            looks.append(trio.current_time())
            assert len(looks) < 1000
            return ()

        async def changed(self) -> None:
            await trio.lowlevel.checkpoint()

    async def at_once(look: Callable[[], object], **_options: object) -> object:
        await trio.lowlevel.checkpoint()
        return look()

    monkeypatch.setattr(registry_module, "SocketWatch", Changing)
    monkeypatch.setattr(registry_module, "run_in_thread", at_once)
    with trio.move_on_after(10 * PAUSE_SECONDS):
        await PluginRegistry(tmp_path, {}).run()
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert len(pauses) >= 8
    assert min(pauses) == pytest.approx(PAUSE_SECONDS)
