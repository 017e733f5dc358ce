"""The lock that holds a shutdown up, when logind and the bus that it was taken over begin anew.

`tests/e2e/test_shutdown.py` is about what becomes of pods, and of what the API server is told.
"""

from collections.abc import Iterator

import pytest

from lab.agent import pod_manifest
from lab.images import BUSYBOX
from tests.guest.node import Node

ENDED = "/var/ended"
# Nobody but the agent runs hooks, and this one takes longer than a machine that waits for nobody.
SLOW_TO_END = {
    "name": "main",
    "image": BUSYBOX,
    "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"],
    "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 5; touch /ended/by-hook"]}}},
    "volumeMounts": [{"name": "ended", "mountPath": "/ended"}],
}
VOLUMES = [{"name": "ended", "hostPath": {"path": ENDED, "type": "DirectoryOrCreate"}}]


@pytest.fixture(scope="module")
def patient(node: Node) -> Iterator[Node]:
    """A machine whose shutdown waits for pods."""
    with node.configured(shutdownGracePeriod="60s", shutdownGracePeriodCriticalPods="50s"):
        yield node


def locks(node: Node) -> list[str]:
    """The lines about the agent's locks, each with its owner, his process and what it delays."""
    listed = node.guest.run("systemd-inhibit --list --no-pager --no-legend").splitlines()
    return [line for line in listed if line.startswith("kubelet ")]


def wait_locked(node: Node, pid: int) -> None:
    """Wait until this agent has one lock, by which shutdowns are delayed."""

    def is_locked() -> bool:
        # logind may be away for a moment, and then nobody lists.
        asked = node.guest.call("systemd-inhibit", "--list", "--no-pager", "--no-legend")
        return asked.status == 0 and f" {pid} " in asked.stdout.decode()

    node.wait_for(is_locked, lambda: f"{pid} holds no lock")
    (lock,) = locks(node)
    assert "shutdown" in lock
    assert lock.split()[-1] == "delay"


def test_a_shutdown_after_the_bus_began_anew_waits_for_pods_all_the_same(patient: Node) -> None:
    """logind does not find back to a bus that began anew: who restarts one restarts both."""
    node, pid = patient, patient.pid
    node.add(pod_manifest("slow", SLOW_TO_END, volumes=VOLUMES, terminationGracePeriodSeconds=40))
    node.wait_for_pod("slow")
    wait_locked(node, pid)
    since = node.now()
    for unit in ("dbus.service", "systemd-logind.service"):
        node.systemctl("restart", unit)
    node.wait_for(
        lambda: "logind is away, will retry" in node.log(since),
        lambda: "the agent has not noticed",
    )
    wait_locked(node, pid)
    assert node.pid == pid
    node.guest.reboot()
    assert node.guest.run(f"ls {ENDED}").split() == ["by-hook"]
    wait_locked(node, node.pid)
    node.wait_for_pod("slow")
    node.remove("slow")
    node.guest.run("rm", "-r", ENDED)
