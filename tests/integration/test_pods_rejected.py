"""Pods that the node does not admit: they fail at once, say why, and nothing of them is made.

The node of this module has room for three pods, and allows one of the unsafe sysctls.
"""

from collections.abc import Iterator

import pytest

from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from tests.integration.pods import Node, container_ids, is_over, one_shot, phase, shell, until_term

MAX_PODS = 3
NO_PREEMPTION = "UnexpectedAdmissionError"
"""Static pods are critical: others make way for them, and this is said when there are none."""


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A small node."""
    settings = {"maxPods": MAX_PODS, "allowedUnsafeSysctls": ["kernel.msg*"]}
    folder = tmp_path_factory.mktemp("small-node")
    with LabAgent(folder, endpoint=containerd.endpoint, settings=settings) as agent:
        yield Node(agent=agent, containerd=containerd)


def with_port(name: str) -> Json:
    return pod_manifest(
        name, until_term("c", ports=[{"containerPort": 80, "hostPort": 31999, "protocol": "UDP"}])
    )


def with_sysctl(name: str, sysctl: str, value: str) -> Json:
    file = f"/proc/sys/{sysctl.replace('.', '/')}"
    return one_shot(
        name,
        shell("c", f"cat {file}"),
        securityContext={"sysctls": [{"name": sysctl, "value": value}]},
    )


def reject(node: Node, manifest: Json) -> Json:
    """Write a manifest of which nothing is to be made."""
    pod = node.finish(manifest)
    assert phase(pod) == "Failed"
    assert node.sandboxes(pod["metadata"]["uid"]) == []
    return pod


def leave(node: Node, *names: str) -> None:
    """The pods go; the next test needs their room."""
    node.remove(*names)
    for name in names:
        node.wait_gone(name)


def test_a_host_port_that_is_taken(node: Node) -> None:
    first = node.run(with_port("first"))
    second = reject(node, with_port("second"))
    words = "node(s) didn't have free ports for the requested pod ports"
    assert second["status"]["reason"] == "NodePorts"
    assert second["status"]["message"] == f"Pod was rejected: Predicate NodePorts failed: {words}"
    assert ("NodePorts", f"Predicate NodePorts failed: {words}") in node.events("second")
    assert container_ids(node.pod("first")) == container_ids(first)
    leave(node, "first")
    assert phase(node.pod("second")) == "Failed"
    leave(node, "second")
    node.run(with_port("third"))
    leave(node, "third")


def test_a_sysctl_that_is_not_allowed(node: Node) -> None:
    pod = reject(node, with_sysctl("forbidden", "kernel.shmmax", "65536"))
    assert pod["status"]["reason"] == "SysctlForbidden"
    assert pod["status"]["message"] == (
        'Pod was rejected: forbidden sysctl: "kernel.shmmax" not allowlisted'
    )
    leave(node, "forbidden")


@pytest.mark.parametrize(
    ("name", "sysctl", "value"),
    [
        ("safe", "net.ipv4.ip_unprivileged_port_start", "81"),
        ("allowed", "kernel.msgmax", "12345"),
    ],
)
def test_a_sysctl_that_is_safe_or_allowed(node: Node, name: str, sysctl: str, value: str) -> None:
    pod = node.finish(with_sysctl(name, sysctl, value))
    assert node.output(pod, "c") == [value]
    leave(node, name)


def test_a_user_namespace_that_cannot_be_given(node: Node) -> None:
    whole_proc = until_term("c", securityContext={"procMount": "Unmasked"})
    pod = reject(node, pod_manifest("own-users", whole_proc, hostUsers=False))
    cannot = "can't set `spec.hostUsers: false`"
    handler = (
        'RuntimeClass handler ""' if node.containerd.tools.major_minor >= (2, 0) else "runtime"
    )
    words = f"{cannot}, {handler} does not support user namespaces"
    assert pod["status"]["reason"] == "UserNamespacesNotSupported"
    assert pod["status"]["message"] == f"Pod was rejected: {words}"
    assert ("UserNamespacesNotSupported", words) in node.events("own-users")
    leave(node, "own-users")


def test_one_pod_too_many(node: Node) -> None:
    names = [f"room-{number}" for number in range(MAX_PODS)]
    for name in names:
        node.run(pod_manifest(name, until_term("c")))
    pod = reject(node, pod_manifest("no-room", until_term("c")))
    assert pod["status"]["reason"] == NO_PREEMPTION
    assert "(res: pods, q: 1)" in pod["status"]["message"]
    assert all(phase(node.pod(name)) == "Running" for name in names)
    leave(node, *names, "no-room")


def test_more_than_the_node_has(node: Node) -> None:
    huge = until_term("c", resources={"requests": {"cpu": "1000"}})
    pod = reject(node, pod_manifest("huge", huge))
    assert pod["status"]["reason"] == NO_PREEMPTION
    assert "(res: cpu, q: " in pod["status"]["message"]
    assert is_over(pod)
    leave(node, "huge")
