"""What a device plugin, and a pod that asks for its devices, can do without disturbing anybody."""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.device_plugin import RESOURCE, LabDevicePlugin
from lab.processes import wait_until
from tests.hostile.victims import DEADLINE_SECONDS, Victims
from trio_kubelet.devices.client import MAX_DEVICES

CONTAINERS = 100
HEALTHY = {f"device-{number}": f"Healthy@{number % 2}" for number in range(MAX_DEVICES)}
UNHEALTHY = dict.fromkeys(HEALTHY, "Unhealthy")
FLIPS = 3
NAMES = [f"hostile-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    """Ten good pods on a node whose devices are placed near the CPUs.

    Its folder has a short path, since there will be sockets below.
    """
    settings = {"topologyManagerPolicy": "best-effort"}
    with (
        tempfile.TemporaryDirectory(prefix="hostile-") as folder,
        LabAgent(Path(folder), settings=settings) as agent,
    ):
        yield Victims.of(agent, {"name": "c", "image": "good"})


@contextmanager
def device_plugin(agent: LabAgent) -> Iterator[LabDevicePlugin]:
    """A plugin with as many devices as there can be, until the end of the block."""
    said = LabDevicePlugin(agent.folder, agent.root / "device-plugins")
    (said.folder / "calls.jsonl").unlink(missing_ok=True)  # of the plugin of another test
    said.set_devices(HEALTHY)
    command = [sys.executable, "-m", "lab.device_plugin"]
    command += ["--folder", str(said.folder), "--plugins", str(said.agent)]
    with subprocess.Popen(command) as process:
        try:
            yield said
        finally:
            process.kill()


def with_devices(count: int) -> Json:
    """A pod of so many containers, each of which asks for a device."""
    resources = {"limits": {RESOURCE: "1"}}
    each = {"image": "hostile", "imagePullPolicy": "IfNotPresent", "resources": resources}
    return pod_manifest("hostile", *({"name": f"c{n}", **each} for n in range(count)))


def wait_registered(plugin: LabDevicePlugin) -> None:
    wait_until(
        lambda: any(not call["error"] for call in plugin.calls("Register")),
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: f"not registered: {plugin.calls()}",
    )


def has_devices(health: str, pod: Json) -> bool:
    """Whether a pod has devices, and all are like this."""
    told = {
        device["health"]
        for status in pod["status"].get("containerStatuses", ())
        for resource in status.get("allocatedResourcesStatus", ())
        for device in resource["resources"]
    }
    return told == {health}


def test_hundreds_of_containers_that_ask_for_one_of_thousands_of_devices(victims: Victims) -> None:
    with device_plugin(victims.agent) as plugin:
        wait_registered(plugin)
        with victims.beside(with_devices(CONTAINERS)):
            victims.wait_pod("hostile", is_running)
        victims.agent.wait_for(lambda pods: not any(name.startswith("hostile") for name in pods))


def test_thousands_of_devices_that_become_unhealthy_and_healthy(victims: Victims) -> None:
    with device_plugin(victims.agent) as plugin:
        wait_registered(plugin)
        with victims.beside(with_devices(1)):
            for told, devices in [("Healthy", HEALTHY), ("Unhealthy", UNHEALTHY)] * FLIPS:
                plugin.set_devices(devices)
                victims.wait_pod("hostile", partial(has_devices, told))


def test_pods_whose_devices_take_forever_to_be_allocated(victims: Victims) -> None:
    """Each waits for its own call, which is for a device of its own, and no other pod waits."""
    agent = victims.agent
    neighbour = pod_manifest("neighbour", {"name": "c", "image": "good"})
    with device_plugin(agent) as plugin, victims.undisturbed():
        plugin.set_faults(Allocate={"hang": True})
        wait_registered(plugin)
        for name in NAMES:
            agent.write(name, {**with_devices(1), "metadata": {"name": name}})
        wait_until(
            lambda: len(plugin.calls("Allocate")) == len(NAMES),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"the plugin is asked for {plugin.calls('Allocate')}",
        )
        agent.write("neighbour", neighbour)
        victims.wait_pod("neighbour", is_running)
        ids = [each for call in plugin.calls("Allocate") for each in call["ids"]]
        assert len(set(ids)) == len(ids) == len(NAMES)
        for name in (*NAMES, "neighbour"):
            agent.remove(name)
        agent.wait_for(lambda pods: all(name.startswith("good") for name in pods))
    plugin.set_faults()


SETTINGS, PING = b"\0\0\0\4\0\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0whatever"
FLOOD_BYTES = 4 * 1024 * 1024


@contextmanager
def flooding(path: Path) -> Iterator[None]:
    """A plugin that answers with frames which mean nothing, until the end of the block."""
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(path))
        listener.listen()

        def flood() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.sendall(SETTINGS)
                        for _ in range(FLOOD_BYTES // len(PING)):
                            connection.sendall(PING * 100)

        flooded = pool.submit(flood)
        try:
            yield
        finally:
            path.unlink()
            listener.shutdown(socket.SHUT_RDWR)
            flooded.result()


def test_plugins_that_answer_with_frames_without_end(victims: Victims) -> None:
    folder = victims.agent.root / "plugins_registry"
    sockets = (folder / f"flood-{number}.sock" for number in range(3))
    with victims.undisturbed(), ExitStack() as stack:
        for path in sockets:
            stack.enter_context(flooding(path))
        wait_until(
            lambda: victims.agent.log.read_text().count("plugin registration failed") >= 3,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: "calls to plugins that flood do not fail",
        )
