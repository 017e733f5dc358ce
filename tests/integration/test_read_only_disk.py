"""The disk of the agent's root folder becomes read-only, and writable again, under real pods."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from lab.processes import wait_until
from tests.containerds import VERSIONS
from tests.integration.pods import Node, conditions, container_ids, status_of, until_term
from trio_kubelet.volumes.mount import mount

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.parametrize(
        "containerd", [v for v in VERSIONS if v == "2.1"], indirect=True, ids="containerd-{}".format
    ),
]

READ_ONLY = "Read-only file system"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The root folder, which is a file system of its own; it goes with the agent."""
    folder = tmp_path / "node/root"
    folder.mkdir(parents=True)
    mount("tmpfs", folder, "tmpfs", options="size=64m")
    return folder


@pytest.fixture
def node(containerd: Containerd, disk: Path) -> Iterator[Node]:
    with LabAgent(disk.parent, endpoint=containerd.endpoint) as agent:
        assert agent.root == disk
        yield Node(containerd=containerd, agent=agent)
        remount(disk, "rw")


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", disk], check=True)


def with_volumes(name: str) -> Json:
    """A pod that is asked each second whether it is ready, with a disk and a part of memory."""
    mounts = [
        {"name": "disk", "mountPath": "/disk", "subPath": "part"},
        {"name": "memory", "mountPath": "/memory"},
    ]
    volumes = [
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    probe = {"exec": {"command": ["test", "-d", "/disk"]}, "periodSeconds": 1}
    container = until_term("c", volumeMounts=mounts, readinessProbe=probe)
    return pod_manifest(name, container, volumes=volumes, terminationGracePeriodSeconds=5)


def wait_event(node: Node, name: str, reason: str) -> None:
    """Wait until an event of a pod says that the disk is read-only."""
    wait_until(
        lambda: any(each == reason and READ_ONLY in message for each, message in node.events(name)),
        deadline_seconds=120,
        else_say=lambda: f"events of {name}: {node.events(name)}",
    )


def is_ready(pod: Json) -> bool:
    return conditions(pod).get("Ready") == "True"


def has_stopped(uid: str, node: Node) -> Callable[[], bool]:
    """True if no process of a pod runs any more."""
    return lambda: (
        not {*node.sandboxes(uid)} & {*node.containerd.ctr("tasks", "list", "-q").split()}
    )


def test_pods_run_on_come_and_go_when_the_disk_can_be_written_to_again(
    node: Node, disk: Path
) -> None:
    names = ("stays", "goes")
    node.add(*map(with_volumes, names))
    stays, goes = [node.wait(name, is_ready) for name in names]
    remount(disk, "ro")
    node.add(with_volumes("comes"))
    node.remove("goes")
    wait_event(node, "comes", "Failed")
    wait_event(node, "goes", "FailedKillPod")
    uid = goes["metadata"]["uid"]
    wait_until(
        has_stopped(uid, node), deadline_seconds=120, else_say=lambda: "the containers run on"
    )
    assert (disk / "pods" / uid).exists()
    assert is_ready(node.pod("stays"))
    remount(disk, "rw")
    node.wait("comes", is_ready)
    wait_until(
        lambda: not (disk / "pods" / uid).exists(),
        deadline_seconds=120,
        else_say=lambda: "the pod that was to go is left",
    )
    after = node.wait("stays", is_ready)
    assert container_ids(after) == container_ids(stays)
    assert status_of(after, "c")["restartCount"] == 0
    assert "Unhealthy" not in {reason for reason, _ in node.events("stays")}
    node.remove_all()
