"""Device plugins, as processes of their own, and containers that have their devices."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define

from lab.agent import Json, LabAgent, is_running, pod_manifest
from lab.containerd import Containerd
from lab.device_plugin import RESOURCE, LabDevicePlugin
from lab.processes import wait_until
from tests.integration.pods import Node, container_ids, phase, status_of, until_term, waiting_reason

DEADLINE_SECONDS = 60.0
CHECKPOINT = "kubelet_internal_checkpoint"


@pytest.fixture
def device_node(containerd: Containerd) -> Iterator[Node]:
    """A node of a test's own, because it is killed and started again.

    Its folder has a short path, since there will be sockets below.
    """
    with (
        tempfile.TemporaryDirectory(prefix="devices-") as folder,
        LabAgent(Path(folder) / "n", endpoint=containerd.endpoint) as agent,
    ):
        yield Node(agent=agent, containerd=containerd)


@define
class Process:
    """A plugin that runs, and what it was asked."""

    said: LabDevicePlugin
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill it as the kernel would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def device_plugin(node: Node, folder: Path, *options: str, **devices: str) -> Iterator[Process]:
    """A plugin with these devices, until the end of the block."""
    agent_folder = node.agent.root / "device-plugins"
    folder.mkdir(exist_ok=True)
    said = LabDevicePlugin(folder, agent_folder)
    if devices:
        said.set_devices({name.replace("_", "-"): health for name, health in devices.items()})
    command = [sys.executable, "-m", "lab.device_plugin"]
    command += ["--folder", str(folder), "--plugins", str(agent_folder), *options]
    with subprocess.Popen(command) as process:
        try:
            yield Process(said, process)
        finally:
            process.kill()


def device_pod(name: str, count: int = 1, **spec: object) -> Json:
    """A pod whose container shows which devices it has, and stays."""
    amounts = {RESOURCE: str(count)}
    resources = {"limits": amounts, "requests": amounts}
    script = "echo devices=$LAB_DEVICES; ls /dev | grep dev-; ls /lab-device"
    return pod_manifest(name, until_term("c", script, resources=resources), **spec)


def wait_called(plugin: Process, method: str, times: int = 1) -> None:
    """Wait until the plugin has noted so many calls without an error."""

    def was_called() -> bool:
        return [each["error"] for each in plugin.said.calls(method)].count("") >= times

    wait_until(was_called, deadline_seconds=DEADLINE_SECONDS, else_say=lambda: f"no {method}")


def checkpoint(node: Node) -> list[Json]:
    file = node.agent.root / "device-plugins" / CHECKPOINT
    entries: list[Json] = json.loads(file.read_text())["Data"]["PodDeviceEntries"]
    return entries


def test_a_container_has_its_devices_over_a_kill_of_the_agent_and_of_the_plugin(
    device_node: Node, tmp_path: Path
) -> None:
    node = device_node
    with device_plugin(node, tmp_path / "p", dev_0="Healthy", dev_1="Healthy") as plugin:
        wait_called(plugin, "Register")
        pod = node.run(device_pod("first"))
        (call,) = plugin.said.calls("Allocate")
        (device,) = call["ids"]
        lines = node.wait_for_output(pod, "c", "devices.json")
        assert f"devices={device}" in lines
        assert device in lines
        (entry,) = checkpoint(node)
        assert (entry["PodUID"], entry["DeviceIDs"]) == (pod["metadata"]["uid"], {"-1": [device]})
        (shown,) = status_of(pod, "c")["allocatedResourcesStatus"]
        assert shown == {
            "name": RESOURCE,
            "resources": [{"resourceID": device, "health": "Healthy"}],
        }
        node.agent.kill()
        node.agent.start()
        wait_called(plugin, "Register", 2)
        again = node.run(device_pod("second"))
        assert container_ids(node.pod("first")) == container_ids(pod)
        assert len(plugin.said.calls("Allocate")) == 2, "what runs is not asked for again"
        assert {each["PodUID"] for each in checkpoint(node)} == {
            pod["metadata"]["uid"],
            again["metadata"]["uid"],
        }
        node.add(device_pod("third", restartPolicy="Never"))
        rejected = node.wait("third", lambda pod: phase(pod) == "Failed")
        assert rejected["status"]["reason"] == "UnexpectedAdmissionError"
        assert rejected["status"]["message"] == (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            f"{RESOURCE}. Requested: 1, Available: 0, which is unexpected"
        )
        plugin.kill()
        node.wait("first", lambda pod: health(pod) == "Unhealthy")
    with device_plugin(node, tmp_path / "p") as plugin:
        node.wait("first", lambda pod: health(pod) == "Healthy")
        assert container_ids(node.pod("first")) == container_ids(pod)
        node.remove("second", "third")
        node.wait_gone("second")
        assert [each["PodUID"] for each in checkpoint(node)] == [pod["metadata"]["uid"]]


def health(pod: Json) -> str:
    """The health of the device of a pod's container."""
    (status,) = status_of(pod, "c")["allocatedResourcesStatus"]
    value: str = status["resources"][0]["health"]
    return value


def test_no_device_has_two_users_though_the_checkpoint_is_damaged(
    device_node: Node, tmp_path: Path
) -> None:
    node = device_node
    with device_plugin(node, tmp_path / "p", dev_0="Healthy", dev_1="Healthy") as plugin:
        wait_called(plugin, "Register")
        first = node.run(device_pod("first"))
        node.agent.kill()
        (node.agent.root / "device-plugins" / CHECKPOINT).write_text("{")
        node.agent.start()
        wait_called(plugin, "Register", 2)
        second = node.run(device_pod("second"))
        assert container_ids(node.pod("first")) == container_ids(first)
        devices = {each for call in plugin.said.calls("Allocate") for each in call["ids"]}
        assert devices == {"dev-0", "dev-1"}
        (held,) = status_of(node.pod("first"), "c")["allocatedResourcesStatus"]
        (given,) = status_of(second, "c")["allocatedResourcesStatus"]
        assert held["resources"] != given["resources"]


def test_pods_wait_for_a_plugin_that_comes_last_after_all_was_down(
    device_node: Node, tmp_path: Path
) -> None:
    node = device_node
    with device_plugin(node, tmp_path / "p", dev_0="Healthy", dev_1="Healthy") as plugin:
        wait_called(plugin, "Register")
        before = node.run(device_pod("old"))
    node.agent.kill()
    for each in node.sandboxes(before["metadata"]["uid"]):
        node.containerd.ctr("tasks", "kill", "--signal", "SIGKILL", "--all", each)
    node.agent.start()
    node.add(device_pod("new"))
    for name in ("old", "new"):
        node.wait(name, lambda pod: waiting_reason(pod, "c") == "WaitingForDevices")
        assert (
            "WaitingForDevices",
            f"Waiting for devices: the device plugin of {RESOURCE} has not registered",
        ) in node.events(name)
    with device_plugin(node, tmp_path / "p") as plugin:
        pods = [node.wait(name, is_running) for name in ("old", "new")]
    assert len({given(node, pod) for pod in pods}) == 2
    assert len(plugin.said.calls("Allocate")) == 2
    assert len(checkpoint(node)) == 2


def given(node: Node, pod: Json) -> str:
    """The devices that a pod's container was told it has."""
    lines = node.wait_for_output(pod, "c", "devices.json")
    return next(line for line in lines if line.startswith("devices="))


def test_a_plugin_registers_through_the_folder_of_plugins(
    device_node: Node, tmp_path: Path
) -> None:
    node = device_node
    socket = node.agent.root / "plugins_registry" / "d.sock"
    options = ("--registry-socket", str(socket), "--pre-start")
    with device_plugin(node, tmp_path / "p", *options, dev_0="Healthy") as plugin:
        wait_called(plugin, "NotifyRegistrationStatus")
        node.run(device_pod("first"))
        assert [each["error"] for each in plugin.said.calls("NotifyRegistrationStatus")] == [""]
        methods = [each["method"] for each in plugin.said.calls()]
        assert methods[-2:] == ["Allocate", "PreStartContainer"]
