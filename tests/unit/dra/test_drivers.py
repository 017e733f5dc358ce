"""Drivers that register through the folder of plugins, on real sockets."""

import socket as socket_module
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from lab.dra_driver import NAME, DRABehaviour, LabDRADriver
from trio_kubelet.dra import DRADrivers
from trio_kubelet.dra import driver as driver_module
from trio_kubelet.dra.driver import V1, V1BETA1, ClaimIdentity, DRADriver
from trio_kubelet.dra.health import MAX_DEVICES, ClaimDeviceHealth
from trio_kubelet.plugins import Plugin, PluginRegistry
from trio_kubelet.rpc import open_rpc_loop

SECONDS = 20.0
CLAIM = ClaimIdentity("default", "a", "uid")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, since there will be sockets in it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@contextmanager
def driver_process(folder: Path, socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The driver as a process of its own, which leaves its sockets behind when it is killed."""
    command = [sys.executable, "-m", "lab.dra_driver", "--folder", str(folder)]
    with subprocess.Popen([*command, "--registry-socket", str(socket)]) as process:
        try:
            yield process
        finally:
            process.kill()


async def registered(drivers: DRADrivers, *, is_there: bool = True) -> DRADriver | None:
    """Wait until the driver is registered, or is not any more."""
    changed = trio.Event()
    drivers.on_change.add(lambda _: changed.set())
    with trio.fail_after(SECONDS):
        while (drivers.get(NAME) is not None) is not is_there:
            await changed.wait()
            changed = trio.Event()
    return drivers.get(NAME)


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_a_driver_serves_from_its_registration_until_it_goes(
    folder: Path, version: str
) -> None:
    drivers, sockets = DRADrivers(), folder / "r"
    sockets.mkdir()
    lab = LabDRADriver(folder, DRABehaviour(versions=(version,)))
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(PluginRegistry(sockets, {"DRAPlugin": drivers.handle}).run)
        async with trio.open_nursery() as driver_nursery:
            await driver_nursery.start(lab.run, sockets / "d.sock")
            driver = await registered(drivers)
            assert driver is not None
            assert driver.version == version
            assert (await driver.prepare([CLAIM])).problems == {}
            assert lab.prepared() == {"uid"}
            assert (await driver.unprepare([CLAIM])).problems == {}
            assert lab.prepared() == set()
            driver_nursery.cancel_scope.cancel()
        (sockets / "d.sock").unlink(missing_ok=True)
        await registered(drivers, is_there=False)
        told = (await driver.prepare([CLAIM])).problems["uid"]
        assert told.startswith("NodePrepareResources: rpc error: code = Unavailable"), told
        nursery.cancel_scope.cancel()


async def test_a_driver_that_is_killed_and_leaves_its_sockets_is_away_until_it_is_back(
    folder: Path,
) -> None:
    drivers, sockets = DRADrivers(), folder / "r"
    sockets.mkdir()
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(PluginRegistry(sockets, {"DRAPlugin": drivers.handle}).run)
        with driver_process(folder, sockets / "d.sock") as process:
            await registered(drivers)
            process.kill()
            await registered(drivers, is_there=False)
        assert (sockets / "d.sock").is_socket()
        assert drivers.is_away(NAME)
        assert not drivers.names()
        with driver_process(folder, sockets / "d.sock"):
            driver = await registered(drivers)
            assert driver is not None
            assert (await driver.prepare([CLAIM])).problems == {}
            assert not drivers.is_away(NAME)
        nursery.cancel_scope.cancel()


async def test_a_driver_that_ends_idle_connections_is_not_away(folder: Path) -> None:
    drivers, told, path = DRADrivers(), list[str](), folder / "dra.sock"
    plugin = Plugin(type="DRAPlugin", name=NAME, endpoint=str(path), versions=(V1,), socket=path)
    drivers.on_change.add(told.append)
    with socket_module.socket(socket_module.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound.dup()))
        async with listener, drivers.handle(plugin):
            with trio.fail_after(SECONDS):
                for _ in range(3):
                    async with await listener.accept() as connection:
                        assert await connection.receive_some(3) == b"PRI"
        assert told == [NAME, NAME], "it came and went once"


async def test_a_driver_that_is_away_gives_its_place_to_the_one_before_it(folder: Path) -> None:
    drivers = DRADrivers()
    old = DRADriver(name=NAME, endpoint="/old.sock", version=V1)
    path = folder / "new.sock"
    plugin = Plugin(type="DRAPlugin", name=NAME, endpoint=str(path), versions=(V1,), socket=path)
    with drivers.registered(old):
        async with drivers.handle(plugin):
            assert drivers.get(NAME) != old
            with trio.fail_after(SECONDS):
                while drivers.get(NAME) != old:
                    await trio.lowlevel.checkpoint()
        assert not drivers.is_away(NAME)


async def test_a_driver_that_hangs_is_given_up_after_the_deadline(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "CALL_SECONDS", 0.1)
    lab = LabDRADriver(folder)
    lab.set_faults(NodePrepareResources={"hang": True})
    driver = DRADriver(name=NAME, endpoint=str(folder / "dra.sock"), version=V1)
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        await nursery.start(lab.run, folder / "r.sock")
        with trio.fail_after(SECONDS):
            told = (await driver.prepare([CLAIM])).problems["uid"]
        assert "DeadlineExceeded" in told
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"versions": ("v1alpha3.Node",)}, "none of its services ['v1alpha3.Node'] is among"),
        ({"versions": ()}, "none of its services [] is among"),
        ({"name": "Not_A_Domain"}, "the name must be a domain of at most 63 characters"),
        ({"name": "x" * 64}, "the name must be a domain of at most 63 characters"),
    ],
)
async def test_a_driver_that_is_not_registered_is_told_why(
    folder: Path, behaviour: dict[str, Any], words: str
) -> None:
    drivers, sockets = DRADrivers(), folder / "r"
    sockets.mkdir()
    lab = LabDRADriver(folder, DRABehaviour(**behaviour))
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(PluginRegistry(sockets, {"DRAPlugin": drivers.handle}).run)
        await nursery.start(lab.run, sockets / "d.sock")
        with trio.fail_after(SECONDS):
            await lab.was_told.wait()
        (told,) = lab.calls("NotifyRegistrationStatus")
        assert words in told["error"]
        nursery.cancel_scope.cancel()


async def test_the_health_of_all_devices_that_a_driver_may_have_is_taken(folder: Path) -> None:
    drivers, told = DRADrivers(), trio.Event()
    health = ClaimDeviceHealth(drivers)
    health.on_health.add(lambda _driver, _devices: told.set())
    lab = LabDRADriver(folder, DRABehaviour(has_health=True))
    names = [f"device-{number}" for number in range(MAX_DEVICES + 100)]
    lab.tell_health(**{name: {"health": 2, "message": "hot", "timeout": 1000} for name in names})
    driver = DRADriver(name=NAME, endpoint=str(folder / "dra.sock"), version=V1)
    async with open_rpc_loop(), trio.open_nursery() as nursery:
        await nursery.start(lab.run, folder / "r.sock")
        nursery.start_soon(health.run)
        with drivers.registered(driver), trio.fail_after(60):
            await told.wait()
            for number in (0, MAX_DEVICES - 1):
                known = health.get(NAME, "pool", names[number])
                assert (str(known.status), known.message) == ("Unhealthy", "hot")
        nursery.cancel_scope.cancel()
