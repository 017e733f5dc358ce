"""Kubernetes' sample device plugin, which nobody here wrote, on a real API server.

On the Go kubelet, which has one folder for plugins whatever its root, the plugin has the host's.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import UnavailableError, control_plane_programs
from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from lab.processes import wait_until
from tests.e2e.cluster import (
    DEADLINE_SECONDS,
    Namespace,
    container,
    is_over,
    is_ready,
    until_term,
)
from tests.e2e.device_plugins import KNOWN_FOLDER, DevicePluginOfOthers
from tests.e2e.local import AGENT, LocalCluster
from tests.missing import do_without

RESOURCE = "example.com/resource"
DEVICES = {"Dev-1", "Dev-2"}
CHECKPOINT = "kubelet_internal_checkpoint"
SOCKET = "kubelet.sock"


@pytest.fixture
def plugin(local_cluster: LocalCluster) -> Iterator[DevicePluginOfOthers]:
    """The plugin, not started yet."""
    try:
        program = control_plane_programs.sample_device_plugin(local_cluster.control_plane.wish)
    except UnavailableError as reason:
        do_without(str(reason))
    folder = local_cluster.agent.root / "device-plugins"
    known = KNOWN_FOLDER if AGENT is GoKubelet else folder
    plugin = DevicePluginOfOthers([str(program)], known)
    yield plugin
    plugin.kill()


def has_devices(count: int) -> Callable[[Json], bool]:
    """True of a Node on which pods may have so many devices."""
    return lambda node: node["status"]["allocatable"].get(RESOURCE) == str(count)


def device_container(count: int = 1) -> Json:
    """A container that shows which devices it has, and stays."""
    amounts = {RESOURCE: str(count)}
    resources = {"limits": amounts, "requests": amounts}
    return until_term("c", "ls -d /tmp/Dev-*", resources=resources)


def given(namespace: Namespace, name: str) -> set[str]:
    """The devices that a pod's container has."""
    return {Path(line).name for line in namespace.kubectl("logs", name).split()}


def test_pods_have_devices_of_the_plugin_as_long_as_there_are_some(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    api, node = local_cluster.api, f"/api/v1/nodes/{local_cluster.node}"
    plugin.start()
    api.wait_for(node, has_devices(2))
    for name in ("first", "second"):
        namespace.run(name, device_container())
    (first,), (second,) = given(namespace, "first"), given(namespace, "second")
    assert {first, second} == DEVICES
    namespace.add("third", device_container())
    namespace.wait_event("third", "FailedScheduling", f"Insufficient {RESOURCE}")
    api.delete(namespace.path("Pod", "first"))
    namespace.wait("third", is_ready)
    assert given(namespace, "third") == {first}
    plugin.kill()
    api.wait_for(node, has_devices(0))
    assert is_ready(namespace.pod("third"))


@pytest.mark.skipif(AGENT is GoKubelet, reason="it rejects pods until the plugin is back")
def test_devices_stay_with_their_pods_over_a_kill_of_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    node = f"/api/v1/nodes/{local_cluster.node}"
    plugin.start()
    local_cluster.api.wait_for(node, has_devices(2))
    namespace.run("first", device_container())
    (first,) = given(namespace, "first")
    local_cluster.kill_agent()
    local_cluster.start_agent()
    namespace.run("second", device_container())
    assert given(namespace, "second") == DEVICES - {first}
    assert container(namespace.pod("first"))["restartCount"] == 0


def test_a_pod_bound_to_a_node_without_a_device_left_is_rejected(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    node = f"/api/v1/nodes/{local_cluster.node}"
    plugin.start()
    local_cluster.api.wait_for(node, has_devices(2))
    namespace.run("first", device_container(2))
    namespace.add("bound", device_container(), nodeName=local_cluster.node)
    status = namespace.wait("bound", is_over)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert status["message"] == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{RESOURCE}. Requested: 1, Available: 0, which is unexpected"
    )


@pytest.mark.skipif(AGENT is GoKubelet, reason="the Go kubelet rejects such pods")
def test_a_pod_waits_for_a_plugin_that_comes_after_the_agent(
    local_cluster: LocalCluster, namespace: Namespace, plugin: DevicePluginOfOthers
) -> None:
    node = f"/api/v1/nodes/{local_cluster.node}"
    plugin.start()
    local_cluster.api.wait_for(node, has_devices(2))
    plugin.kill()
    local_cluster.kill_agent()
    local_cluster.start_agent()
    namespace.add("waits", device_container(), nodeName=local_cluster.node)
    words = f"Waiting for devices: the device plugin of {RESOURCE} has not registered"
    namespace.wait_event("waits", "WaitingForDevices", words)
    plugin.start()
    namespace.wait("waits", is_ready)


@pytest.fixture
def known_folder(local_cluster: LocalCluster) -> Iterator[None]:
    """The agent has the folder of device plugins that the Go kubelet has; in the end its own."""
    own, checkpoint = local_cluster.agent.root / "device-plugins", KNOWN_FOLDER / CHECKPOINT
    local_cluster.stop_agent()
    shutil.rmtree(own)
    KNOWN_FOLDER.mkdir(parents=True, exist_ok=True)
    # A Go kubelet of an earlier test leaves its socket. The one that is waited for below must be
    # the agent's own: when that appears, the agent has removed the sockets of plugins, and a
    # plugin that starts then keeps its.
    for left in (checkpoint, KNOWN_FOLDER / SOCKET):
        left.unlink(missing_ok=True)
    own.symlink_to(KNOWN_FOLDER)
    local_cluster.start_agent()
    wait_until(
        (own / SOCKET).exists,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: "nobody answers device plugins",
    )
    yield
    if type(local_cluster.agent) is not AGENT:
        local_cluster.hand_over(AGENT)
    local_cluster.stop_agent()
    own.unlink()
    own.mkdir()
    checkpoint.unlink(missing_ok=True)
    local_cluster.start_agent()


def wait_registered_with_the_go_kubelet() -> None:
    """Wait until it knows the plugin's devices: it alone writes them all down."""

    def knows_devices() -> bool:
        data = json.loads((KNOWN_FOLDER / CHECKPOINT).read_text())["Data"]
        return set(data["RegisteredDevices"].get(RESOURCE) or ()) == DEVICES

    wait_until(
        knows_devices,
        deadline_seconds=DEADLINE_SECONDS,
        else_say=lambda: "the plugin has not registered with the Go kubelet",
    )


@pytest.mark.skipif(AGENT is GoKubelet, reason="the agent has the node first")
def test_a_node_with_devices_changes_hands_both_ways(
    local_cluster: LocalCluster,
    namespace: Namespace,
    known_folder: None,
    plugin: DevicePluginOfOthers,
    go_kubelet: type[GoKubelet],
) -> None:
    plugin.start()
    local_cluster.api.wait_for(f"/api/v1/nodes/{local_cluster.node}", has_devices(2))
    namespace.run("first", device_container())
    (first,) = given(namespace, "first")
    local_cluster.hand_over(go_kubelet)
    wait_registered_with_the_go_kubelet()
    namespace.run("second", device_container())
    assert given(namespace, "second") == DEVICES - {first}
    local_cluster.hand_over(AGENT)
    local_cluster.api.delete(namespace.path("Pod", "second"))
    namespace.wait_gone("second")
    namespace.run("third", device_container())
    assert given(namespace, "third") == DEVICES - {first}
    assert container(namespace.pod("first"))["restartCount"] == 0
