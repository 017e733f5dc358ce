"""Pods that crun runs, where systemd makes their cgroups: crun makes one more below the scope."""

import json
from collections.abc import Iterator

import pytest

from lab.agent import Json, pod_manifest
from lab.images import BUSYBOX, SLEEPER
from tests.guest.node import UNIT, Node

CONFIGURATION = "/etc/containerd/config.toml"
DEFAULT_HANDLER = """
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "crun"
"""
CGROUPS = "/sys/fs/cgroup"
LIMITS = {"limits": {"cpu": "200m", "memory": "32Mi"}}
# Prints the interfaces of each pod by its UID, as statistics have them.
NETWORKS = """
import json
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree
from trio_kubelet.stats.cgroup_reader import CgroupReader, Depth, Stopwatch
reader = CgroupReader(tree=CgroupTree.find(mount_points()))
pods = reader.read(Stopwatch(0), Depth.NETWORK, dict).pods
print(json.dumps({
    uid: [each.name for each in pod.network.interfaces] if pod.network else None
    for uid, pod in pods.items()
}))
"""


@pytest.fixture(scope="module", autouse=True)
def crun(node: Node) -> Iterator[None]:
    """Makes crun what containerd runs pods with that name no handler."""
    before = node.guest.read(CONFIGURATION)
    node.guest.write(CONFIGURATION, before + DEFAULT_HANDLER.encode())
    node.systemctl("restart", "containerd")
    yield
    node.guest.write(CONFIGURATION, before)
    node.systemctl("restart", "containerd")


def container_id(pod: Json) -> str:
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"].partition("://")[2])


def test_a_container_is_held_to_its_limits_in_the_slice_of_its_pod_and_its_network_is_found(
    node: Node,
) -> None:
    node.add(pod_manifest("held", {"name": "main", "image": SLEEPER, "resources": LIMITS}))
    pod = node.wait_for_pod("held")
    found = container_id(pod)
    cgroup = node.guest.run("cat", f"/proc/{node.processes()[found]}/cgroup").strip()[len("0::") :]
    name = f"kubepods-pod{pod['metadata']['uid'].replace('-', '_')}.slice"
    scope = f"/kubepods.slice/{name}/cri-containerd-{found}.scope"
    assert cgroup == f"{scope}/container"
    for folder in (scope, f"/kubepods.slice/{name}"):
        assert node.guest.read(f"{CGROUPS}{folder}/memory.max") == b"33554432\n"
        assert node.guest.read(f"{CGROUPS}{folder}/cpu.max") == b"20000 100000\n"
    networks = json.loads(node.guest.run("/opt/trio-kubelet/bin/python", "-c", NETWORKS))
    assert networks == {pod["metadata"]["uid"]: ["eth0"]}
    node.systemctl("restart", UNIT)
    node.systemctl("restart", "containerd")
    assert container_id(node.wait_for_pod("held")) == found
    node.remove("held")
    node.wait_for(
        lambda: node.guest.call("test", "-e", f"{CGROUPS}/kubepods.slice/{name}").status == 1,
        lambda: f"{name} is there",
    )


def test_who_is_killed_for_its_memory_says_so(node: Node) -> None:
    hungry = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["tail", "/dev/zero"],
        "resources": LIMITS,
    }
    node.add(pod_manifest("hungry", hungry, restartPolicy="Never"))
    pod = node.wait_for_pod("hungry", lambda pod: pod["status"].get("phase") == "Failed")
    (status,) = pod["status"]["containerStatuses"]
    end = status["state"]["terminated"]
    assert (end["reason"], end["exitCode"]) == ("OOMKilled", 137)
    node.remove("hungry")
