"""A machine that goes down ends its pods in the order of their priorities, and says so first.

The machine has systemd's own logind and its own D-Bus; nothing of them is a stand-in.
"""

from collections.abc import Iterator
from datetime import datetime

import pytest

from lab.cluster_api import Json
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, conditions, container, is_over, is_ready, shell, until_term
from tests.e2e.guest import GuestCluster
from tests.guest.node import Node

PRIORITIES = {"low": "", "middle": "middle", "high": "system-cluster-critical"}
SECONDS = {"low": 20, "middle": 30, "high": 30}
"""Only one pod needs all of its time; a busy machine takes long to end the others."""
PODS = {"low": 8, "middle": 7, "high": 5}
MIDDLE = 1000
DEADLINE_SECONDS = 240
MESSAGE = "Pod was terminated in response to imminent node shutdown."
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def node(guest_cluster: GuestCluster) -> Iterator[Node]:
    """The machine, whose shutdown waits for three groups of pods."""
    guest_cluster.api.create(CLASSES, {"metadata": {"name": "middle"}, "value": MIDDLE})
    values = {"low": 0, "middle": MIDDLE, "high": 2_000_000_000}
    periods = [
        {"priority": values[name], "shutdownGracePeriodSeconds": seconds}
        for name, seconds in SECONDS.items()
    ]
    node = guest_cluster.machine
    with node.configured(shutdownGracePeriodByPodPriority=periods):
        guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
        yield node
    guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
    guest_cluster.api.delete(f"{CLASSES}/middle")


@pytest.fixture
def namespace(guest_cluster: GuestCluster, node: Node) -> Iterator[Namespace]:
    namespace = guest_cluster.make_namespace("shutdown")
    yield namespace
    namespace.kubectl("delete", "pods", "--all", "--wait", "--timeout=120s")
    namespace.delete()


def add(namespace: Namespace, group: str, number: int) -> str:
    """Add a pod of a group; the first of the low ones takes all the time that it is given."""
    name = f"{group}-{number}"
    stubborn = name == "low-0"
    script = "trap : TERM; while :; do sleep 1; done"
    namespace.add(
        name,
        shell("c", script) if stubborn else until_term("c"),
        priorityClassName=PRIORITIES[group],
        terminationGracePeriodSeconds=3600,
    )
    return name


def ready(namespace: Namespace) -> None:
    namespace.wait_all(lambda pods: all(map(is_ready, pods)), deadline_seconds=DEADLINE_SECONDS)


def finished(pod: Json) -> datetime:
    return datetime.fromisoformat(container(pod)["state"]["terminated"]["finishedAt"])


def _id(pod: Json) -> str:
    """The runtime's id of a pod's container."""
    named: str = container(pod)["containerID"]
    return named.partition("://")[2]


def is_locked(node: Node) -> bool:
    """True if the agent holds a shutdown of the machine up."""
    return "Kubelet needs time" in node.guest.run("systemd-inhibit --list --no-pager")


def test_pods_end_in_order_and_are_told_of_before_the_machine_is_gone(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node
) -> None:
    names = {group: [add(namespace, group, n) for n in range(PODS[group])] for group in PODS}
    ready(namespace)
    wait_until(lambda: is_locked(node), deadline_seconds=30, else_say=node.last_words)
    node.guest.power_off()

    pods = {pod["metadata"]["name"]: pod for pod in namespace.pods()}
    assert {name: pod["status"]["phase"] for name, pod in pods.items()} == dict.fromkeys(
        pods, "Failed"
    )
    for pod in pods.values():
        assert (pod["status"]["reason"], pod["status"]["message"]) == ("Terminated", MESSAGE)
        disrupted = conditions(pod)["DisruptionTarget"]
        assert (disrupted["status"], disrupted["reason"]) == ("True", "TerminationByKubelet")
    assert container(pods["low-0"])["state"]["terminated"]["exitCode"] == 137
    killed = finished(pods["low-0"])  # As the next group begins.
    ends = {group: [finished(pods[name]) for name in names[group]] for group in names}
    ends["low"].remove(killed)
    assert max(ends["low"]) < min(ends["middle"])
    assert max(ends["middle"]) <= min(ends["high"])
    assert (killed - min(ends["low"])).total_seconds() >= SECONDS["low"] - 5
    told = conditions(guest_cluster.api.get(f"/api/v1/nodes/{guest_cluster.node}"))["Ready"]
    assert (told["status"], told["reason"]) == ("False", "KubeletNotReady")
    assert told["message"] == "node is shutting down"

    node.guest.boot()
    guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
    pods = {pod["metadata"]["name"]: pod for pod in namespace.pods()}
    assert all(map(is_over, pods.values()))
    assert not node.processes().keys() & {_id(pod) for pod in pods.values()}
    reasons = {each["reason"] for each in guest_cluster.api.get("/api/v1/events")["items"]}
    assert "Shutdown" in reasons


def test_a_shutdown_that_does_not_happen_leaves_the_other_groups_as_they_were(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node
) -> None:
    for group in PODS:
        add(namespace, group, 0)
    ready(namespace)
    before = {pod["metadata"]["name"]: container(pod)["containerID"] for pod in namespace.pods()}
    wait_until(lambda: is_locked(node), deadline_seconds=30, else_say=node.last_words)
    node.guest.run("systemctl --no-block poweroff")
    path = f"/api/v1/nodes/{guest_cluster.node}"
    guest_cluster.api.wait_for(path, lambda told: not is_ready(told))
    namespace.add("late", until_term("c"), nodeName=guest_cluster.node)
    late = namespace.wait("late", is_over)
    assert late["status"]["reason"] == "NodeShutdown"
    node.systemctl("restart", "systemd-logind")  # It forgets what it was about to do.
    guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)

    namespace.wait("low-0", is_over)
    for name in ("middle-0", "high-0"):
        pod = namespace.pod(name)
        assert is_ready(pod)
        assert container(pod)["containerID"] == before[name]
        assert container(pod)["restartCount"] == 0
    wait_until(lambda: is_locked(node), deadline_seconds=60, else_say=node.last_words)
