"""Pods with devices, when their machine starts anew and the device plugin is the last to come."""

import json
from collections.abc import Iterator, Mapping

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.device_plugin import RESOURCE
from lab.images import SLEEPER
from lab.processes import wait_until
from tests.guest.node import ROOT, Node
from trio_kubelet.devices.checkpoint import parsed

PLUGINS = f"{ROOT}/device-plugins"
FOLDER = "/var/lib/lab-plugin"
UNIT = "lab-device-plugin.service"
DEVICES = ("dev-0", "dev-1", "dev-2")
PODS = ("first", "second", "third")
RESOURCES = {"limits": {RESOURCE: "1"}}
WAITING = "WaitingForDevices"


class Plugin:
    """A device plugin of the lab as a unit of the machine, which is gone after a boot."""

    def __init__(self, node: Node) -> None:
        self._guest = node.guest
        devices = json.dumps(dict.fromkeys(DEVICES, "Healthy"))
        self._guest.write(f"{FOLDER}/devices.json", devices)

    def start(self) -> None:
        """Start it; it registers by itself."""
        command = f"/opt/trio-kubelet/bin/python -m lab.device_plugin --folder {FOLDER}"
        self._guest.run(
            f"systemd-run --quiet --unit={UNIT} --working-directory=/src "
            f"--setenv=PYTHONDONTWRITEBYTECODE=1 {command} --plugins {PLUGINS}"
        )

    def calls(self, method: str) -> list[Json]:
        """The calls of a method so far, whenever the plugin was started."""
        lines = self._guest.read(f"{FOLDER}/calls.jsonl").splitlines()
        return [call for call in map(json.loads, lines) if call["method"] == method]

    def remove(self) -> None:
        """Take it away, and what it has written."""
        self._guest.call("systemctl", "stop", UNIT)
        self._guest.run("rm", "-r", FOLDER)


@pytest.fixture
def plugin(node: Node) -> Iterator[Plugin]:
    """The plugin, which the node knows when the test begins.

    A pod that comes before runs without devices, as of a resource that nobody has.
    """
    plugin, begun = Plugin(node), node.now()
    plugin.start()
    node.wait_for(
        lambda: "device plugin registered" in node.log(since=begun),
        else_say=lambda: "the plugin does not register",
    )
    yield plugin
    node.remove(*PODS)
    plugin.remove()


def container(pod: Json) -> Json:
    """The status of a pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    found: Json = status
    return found


def waits(pod: Json) -> bool:
    """True if a pod's container waits for its device."""
    statuses = pod["status"].get("containerStatuses", ())
    return any(each["state"].get("waiting", {}).get("reason") == WAITING for each in statuses)


def devices(node: Node, pods: Mapping[str, Json]) -> Mapping[str, str]:
    """The devices that the processes of some pods see, by the pods' names.

    A process that has just been started may still be runc's, with another environment.
    """
    pids, found = node.processes(), dict[str, str]()

    def look() -> bool:
        for name, pod in pods.items():
            pid = pids[container(pod)["containerID"].rpartition("/")[2]]
            for each in node.guest.read(f"/proc/{pid}/environ").decode().split("\0"):
                key, _, value = each.partition("=")
                if key == "LAB_DEVICES":
                    found[name] = value
        return found.keys() == pods.keys()

    wait_until(look, deadline_seconds=60, else_say=lambda: f"only {found} see devices")
    return found


def recorded(node: Node) -> Mapping[str, frozenset[str]]:
    """The devices by the UIDs of the pods, as the checkpoint has them."""
    records = parsed(node.guest.read(f"{PLUGINS}/kubelet_internal_checkpoint").decode()).records
    return {record.pod_uid: record.ids for record in records}


@pytest.mark.parametrize("how", ["in order", "power failure"])
def test_after_a_boot_three_pods_have_their_devices_again_when_the_plugin_is_the_last_to_come(
    node: Node, plugin: Plugin, how: str
) -> None:
    for name in PODS:
        main = {"name": "main", "image": SLEEPER, "resources": RESOURCES}
        node.add(pod_manifest(name, main))
    pods = {name: node.wait_for_pod(name) for name in PODS}
    before, records = devices(node, pods), recorded(node)
    assert sorted(before.values()) == list(DEVICES)
    if how == "in order":
        node.guest.reboot()
    else:
        node.guest.run("sync")
        node.guest.cut_power()
        node.guest.boot()

    for name in PODS:
        node.wait_for_pod(name, waits)
    assert node.processes() == {}
    plugin.start()
    again = {
        name: node.wait_for_pod(name, lambda pod: is_running(pod) and not waits(pod))
        for name in PODS
    }
    assert devices(node, again) == before
    assert recorded(node) == records
    assert len(plugin.calls("Allocate")) == len(PODS)
    for name, pod in again.items():
        assert pod["metadata"]["uid"] == pods[name]["metadata"]["uid"]
        assert container(pod)["restartCount"] == container(pods[name])["restartCount"] + 1
