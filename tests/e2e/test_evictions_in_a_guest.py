"""The same on cgroup v2, with a disk of their own for images and layers, and a node that holds.

What is short is chosen by thresholds just below what the machine has. containerd keeps images and
layers on one disk, so none is apart for containers alone.
"""

import json
import os
from collections.abc import Iterator

import pytest

from lab.cluster_api import Json
from tests.e2e.cluster import Namespace, container, is_over, is_ready, shell, until_term
from tests.e2e.eviction_cases import (
    NOTHING_BUT_PODS,
    asking,
    disrupted,
    ends_with_143,
    evicted,
    wait_node_event,
    wait_pressure_over,
)
from tests.e2e.guest import GuestCluster
from tests.guest.node import ROOT, UNIT, Node
from trio_kubelet.eviction.records import FILE

ROUNDS = int(os.environ.get("TRIO_KUBELET_E2E_PRESSURES") or 1)
"""How often the machine's memory is eaten; `nox -s pressures` does it ten times."""

IMAGES = "/var/lib/containerd"
IMAGES_MIB = 300
RESERVED_MIB = 400
# Of the machine's 2 GiB pods have 1.6; 50 MiB a second for each of four that eat.
EATERS = 4
DEADLINE_SECONDS = 240
# Without it each pod is an event about the node, of which the API gets no more than a few.
QUIET = {"clusterDNS": ["10.96.0.10"]}
MOUNT = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
DISK: Json = {"name": "v", "emptyDir": {}}
MEMORY: Json = {"name": "v", "emptyDir": {"medium": "Memory"}}
# dd's own memory, and files in memory, which stay when the kernel kills who wrote them.
EAT_ITSELF = (
    "(while :; do dd if=/dev/zero bs=1M count=50; sleep 1; done) "
    "| dd of=/dev/null bs=1500M iflag=fullblock"
)
EAT_FILES = "n=0; while :; do n=$((n+1)); dd if=/dev/zero of=/v/$n bs=1M count=50; sleep 1; done"
HOLD_40_MIB = "dd if=/dev/zero of=/dev/shm/held bs=1M count=40"


def measure(node: Node, command: str) -> int:
    """A number that a command on the machine prints."""
    return int(node.guest.run(command))


def thresholds(node: Node) -> dict[str, str]:
    """Thresholds that a pod can cross in seconds, by what there is now."""
    disk = measure(node, "df --output=avail --block-size=1M / | tail -1")
    inodes, of_images = (
        measure(node, f"df --output=iavail {path} | tail -1") for path in ("/", IMAGES)
    )
    most = measure(node, "sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -1")
    tasks = measure(node, "cut -d/ -f2 /proc/loadavg | cut -d' ' -f1")
    return {
        "memory.available": "100Mi",
        "nodefs.available": f"{disk - 500}Mi",
        "nodefs.inodesFree": str(inodes - 3000),
        "imagefs.available": "100Mi",
        "imagefs.inodesFree": str(of_images - 3000),
        "pid.available": str(most - tasks - 400),
    }


@pytest.fixture(scope="module")
def node(guest_cluster: GuestCluster) -> Iterator[Node]:
    """The machine, with images on a small disk, memory reserved for itself, and thresholds."""
    node = guest_cluster.machine
    services = ("containerd", UNIT)
    node.systemctl("stop", UNIT, "containerd")
    node.guest.run(
        f"cp -a {IMAGES} {IMAGES}-kept; mount -t tmpfs -o size={IMAGES_MIB}m tmpfs {IMAGES}; "
        f"cp -a {IMAGES}-kept/. {IMAGES}; rm -r {IMAGES}-kept"
    )
    node.systemctl("start", *services)
    with node.configured(
        **NOTHING_BUT_PODS,
        systemReserved={"memory": f"{RESERVED_MIB}Mi"},
        evictionHard=thresholds(node),
        **QUIET,
    ):
        guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
        yield node
        node.systemctl("stop", UNIT, "containerd")
        node.guest.run(f"umount --lazy {IMAGES}")
        node.systemctl("start", *services)
    guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def modest(guest_cluster: GuestCluster, node: Node) -> Iterator[Namespace]:
    """A namespace with pods that stay within what they ask for, all the time."""
    namespace = guest_cluster.make_namespace("modest")
    for name, kind in (("burstable", "requests"), ("guaranteed", "limits")):
        resources = {"resources": {kind: {"memory": "64Mi", "cpu": "50m"}}}
        namespace.add(name, until_term("c", HOLD_40_MIB, **resources))
    namespace.wait_all(lambda pods: all(map(is_ready, pods)), deadline_seconds=DEADLINE_SECONDS)
    yield namespace
    delete_pods(namespace)


@pytest.fixture
def namespace(guest_cluster: GuestCluster, node: Node, modest: Namespace) -> Iterator[Namespace]:
    """A namespace for pods that are not modest, beside those that are and run on undisturbed."""
    before = containers(modest)
    namespace = guest_cluster.make_namespace("pressure")
    yield namespace
    delete_pods(namespace)
    assert containers(modest) == before, node.log()


def delete_pods(namespace: Namespace) -> None:
    namespace.kubectl("delete", "pods", "--all", "--wait", "--timeout=120s")
    namespace.delete()


def containers(namespace: Namespace) -> dict[str, tuple[bool, str, int]]:
    """By pod: True if it is ready, and its container, and how often that was started again."""
    found = ((pod, container(pod)) for pod in namespace.pods())
    return {
        pod["metadata"]["name"]: (is_ready(pod), each["containerID"], each["restartCount"])
        for pod, each in found
    }


EAT_IN_STEPS = "for n in $(seq 34); do dd if=/dev/zero of=/v/$n bs=1M count=50; sleep .2; done"


@pytest.mark.parametrize(
    ("signal", "resource", "condition", "script", "volume"),
    [
        (
            "nodefs.available",
            "ephemeral-storage",
            "DiskPressure",
            "fallocate -l 700M /v/data",
            DISK,
        ),
        (
            "nodefs.inodesFree",
            "inodes",
            "DiskPressure",
            "for n in $(seq 5000); do : >/v/$n; done",
            DISK,
        ),
        (
            "imagefs.available",
            "ephemeral-storage",
            "DiskPressure",
            "dd if=/dev/zero of=/data bs=1M count=200",
            None,
        ),
        (
            "imagefs.inodesFree",
            "inodes",
            "DiskPressure",
            "mkdir /files; for n in $(seq 5000); do : >/files/$n; done",
            None,
        ),
        (
            "pid.available",
            "pids",
            "PIDPressure",
            "for n in $(seq 600); do sleep 1000000 & done",
            None,
        ),
        ("allocatableMemory.available", "memory", "MemoryPressure", EAT_IN_STEPS, MEMORY),
    ],
)
def test_the_pod_that_takes_what_is_short_goes(
    guest_cluster: GuestCluster,
    namespace: Namespace,
    signal: str,
    resource: str,
    condition: str,
    script: str,
    volume: Json | None,
) -> None:
    taker = ends_with_143(script, **(MOUNT if volume else {}), **asking("10Mi"))
    namespace.add("taker", taker, **({"volumes": [volume]} if volume else {}))
    pod = evicted(namespace, "taker")
    message = pod["status"]["message"]
    assert message.startswith(f"The node was low on resource: {resource}. Threshold quantity: ")
    assert disrupted(pod)
    assert cause(guest_cluster.machine, pod) == signal
    wait_node_event(guest_cluster, "EvictionThresholdMet", f"Attempting to reclaim {resource}")
    wait_pressure_over(guest_cluster, condition, pod)


def test_the_pod_that_takes_the_memory_of_the_whole_machine_goes(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node
) -> None:
    """Pods have no limit together; the volume can have what the machine has less the threshold."""
    hard = {"memory.available": "900Mi"}
    unlimited = {"enforceNodeAllocatable": ["none"], "systemReserved": {}}
    with node.configured(**NOTHING_BUT_PODS, **QUIET, **unlimited, evictionHard=hard):
        guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
        taker = ends_with_143(EAT_IN_STEPS, **MOUNT, **asking("10Mi"))
        namespace.add("taker", taker, volumes=[MEMORY])
        pod = evicted(namespace, "taker")
        assert "memory. Threshold quantity: 900Mi, available: " in pod["status"]["message"]
        assert cause(node, pod) == "memory.available"
        wait_pressure_over(guest_cluster, "MemoryPressure", pod)
    guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)


def cause(node: Node, pod: Json) -> str:
    """The signal for which the agent evicted a pod, by its own record."""
    records = json.loads(node.guest.read(f"{ROOT}/{FILE}"))["evictions"]
    (found,) = (each["cause"] for each in records if each["uid"] == pod["metadata"]["uid"])
    return str(found)


def eater(number: int) -> Json:
    """The spec of a pod that eats memory: every second one its own, the others in files."""
    is_odd = number % 2
    main = shell("c", EAT_FILES if is_odd else EAT_ITSELF, **(MOUNT if is_odd else {}))
    return {
        "containers": [main],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "volumes": [MEMORY] if is_odd else [],
    }


def services(node: Node) -> str:
    """The processes of agent and runtime, and how often they were started again."""
    return node.systemctl("show", UNIT, "containerd", "--property=Id,MainPID,NRestarts")


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_node_whose_memory_is_eaten_at_200_mib_a_second_holds(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node, number: int
) -> None:
    """Whether an eater is evicted or the kernel was faster, agent, runtime and others run on."""
    before = services(node)
    names = [f"eater-{each}" for each in range(EATERS)]
    for each, name in enumerate(names):
        namespace.create("Pod", name, {"spec": eater(each)})
    ends = [namespace.wait(name, is_over, deadline_seconds=DEADLINE_SECONDS) for name in names]
    reasons = [end["status"].get("reason") or container(end)["state"] for end in ends]
    print(f"round {number}: {json.dumps(reasons)}")
    assert all(each == "Evicted" or each["terminated"]["reason"] == "OOMKilled" for each in reasons)
    assert services(node) == before
    wait_pressure_over(guest_cluster, "MemoryPressure", ends[0])
