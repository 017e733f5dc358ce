"""RuntimeClass: another handler of the runtime for some pods, where the machine has two."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Namespace, container, is_ready, until_term
from tests.e2e.guest import GuestCluster
from tests.guest.node import Node

CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
# By class: its handler. The machine's containerd has runc, its default, and crun.
HANDLERS = {"crun": "crun", "absent": "absent"}
# Where containerd has runtimes keep what they know of their containers.
STATE = "/run/containerd/runc/k8s.io"
MAIN = until_term("c")
DEADLINE_SECONDS = 240


@pytest.fixture(scope="module", autouse=True)
def classes(guest_cluster: GuestCluster) -> Iterator[None]:
    """The classes of the cluster."""
    for name, handler in HANDLERS.items():
        guest_cluster.api.create(CLASSES, {"metadata": {"name": name}, "handler": handler})
    yield
    for name in HANDLERS:
        guest_cluster.api.delete(f"{CLASSES}/{name}")


@pytest.fixture
def namespace(guest_cluster: GuestCluster) -> Iterator[Namespace]:
    namespace = guest_cluster.make_namespace("classes")
    yield namespace
    namespace.delete()


def ran_by(node: Node, container_id: str) -> list[str]:
    """The OCI runtimes that say that they run this container."""
    return [
        name
        for name in ("runc", "crun")
        if node.guest.call(name, "--root", STATE, "state", container_id).status == 0
    ]


@pytest.mark.parametrize("runtime_class", ["", "crun"])
def test_a_pod_runs_with_the_handler_of_its_class(
    guest_cluster: GuestCluster, namespace: Namespace, runtime_class: str
) -> None:
    spec = {"runtimeClassName": runtime_class} if runtime_class else {}
    namespace.add("runs", MAIN, **spec)
    pod = namespace.wait("runs", is_ready, deadline_seconds=DEADLINE_SECONDS)
    found = container(pod)["containerID"].partition("://")[2]
    assert ran_by(guest_cluster.machine, found) == [runtime_class or "runc"]


@pytest.mark.parametrize(
    ("runtime_class", "words"),
    [
        ("unknown", 'Failed to create pod sandbox: runtimeclass.node.k8s.io "unknown" not found'),
        ("absent", 'no runtime for "absent" is configured'),
    ],
)
def test_a_pod_whose_class_or_handler_nobody_knows_waits_and_says_so(
    namespace: Namespace, runtime_class: str, words: str
) -> None:
    namespace.add("waits", MAIN, runtimeClassName=runtime_class)
    said = namespace.wait_event("waits", "FailedCreatePodSandBox", words)["message"]
    assert said.startswith("Failed to create pod sandbox: ")
    assert container(namespace.pod("waits"))["state"]["waiting"]["reason"] == "ContainerCreating"
