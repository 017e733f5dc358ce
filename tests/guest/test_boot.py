"""What becomes of pods when their machine starts anew, in order or not."""

from collections.abc import Iterator

import pytest

from lab.agent import Json, is_running, pod_manifest
from lab.images import BUSYBOX, SLEEPER
from tests.guest.node import Node

MAIN = {"name": "main", "image": SLEEPER}
# Goes on once the machine has a file.
WAITING = {
    "name": "wait",
    "image": BUSYBOX,
    "command": ["sh", "-c", "trap 'exit 1' TERM; until test -e /go/on; do sleep 0.1; done"],
    "volumeMounts": [{"name": "go", "mountPath": "/go"}],
}
GO = {"name": "go", "hostPath": {"path": "/var/go", "type": "DirectoryOrCreate"}}


@pytest.fixture(scope="module")
def pod(node: Node) -> Iterator[str]:
    """A pod that runs, whatever happens to its machine."""
    node.add(pod_manifest("steady", MAIN))
    node.wait_for_pod("steady")
    yield "steady"
    node.remove("steady")


def container(pod: Json) -> Json:
    """The status of a pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    found: Json = status
    return found


@pytest.fixture
def late(node: Node) -> Iterator[str]:
    """A pod that is in the middle of its start, until the machine has its file."""
    node.add(pod_manifest("late", MAIN, initContainers=[WAITING], volumes=[GO]))
    node.wait_for_pod(
        "late",
        lambda pod: "running" in str(pod["status"].get("initContainerStatuses")),
    )
    yield "late"
    node.remove("late")
    node.guest.run("rm", "-r", "/var/go")


@pytest.mark.parametrize("how", ["in order", "power failure"])
def test_after_a_boot_pods_start_also_amid_their_start_and_nothing_of_the_last_one_runs(
    node: Node, pod: str, late: str, how: str
) -> None:
    before, first_boot = node.wait_for_pod(pod), node.guest.boot_id
    if how == "in order":
        node.guest.reboot()
    else:
        node.guest.run("sync")
        node.guest.cut_power()
        node.guest.boot()
    assert node.guest.boot_id != first_boot
    assert first_boot.replace("-", "") in node.guest.run("journalctl", "--list-boots")
    assert node.show("ActiveState") == "active"
    old = container(before)["containerID"]
    after = node.wait_for_pod(
        pod, lambda pod: is_running(pod) and container(pod)["containerID"] != old
    )
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert container(after)["restartCount"] == container(before)["restartCount"] + 1
    assert container(after)["lastState"]["terminated"]["containerID"] == old
    node.guest.run("touch", "/var/go/on")
    assert container(node.wait_for_pod(late))["restartCount"] == 0
    assert len(node.processes()) == 4, "two sandboxes and their containers"
