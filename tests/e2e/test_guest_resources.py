"""Resources of pods on a machine with systemd, cgroup v2 and swap: resized, booted, swapped."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from lab.cluster_api import Json
from tests.e2e.cluster import Namespace, conditions, container, is_ready, until_term
from tests.e2e.guest import GuestCluster
from tests.guest.node import UNIT, Node

MIB = 1 << 20
SWAP_MIB = 64
SMALL: Json = {"cpu": "100m", "memory": "32Mi"}
LARGE: Json = {"cpu": "200m", "memory": "64Mi"}
TOO_MUCH: Json = {"cpu": "700m", "memory": "64Mi"}
"""More than the machine's CPU has beside a pod that asks for half of it."""
DEADLINE_SECONDS = 240
_START_TIME = 19
"""The position of a process' start time in what follows its name in /proc/PID/stat."""


@pytest.fixture(scope="module")
def node(guest_cluster: GuestCluster) -> Iterator[Node]:
    """The machine, with some swap, of which burstable pods may have a part."""
    node = guest_cluster.machine
    node.guest.run(
        f"dd if=/dev/zero of=/swap bs=1M count={SWAP_MIB} status=none; chmod 600 /swap; "
        "busybox mkswap /swap >/dev/null; swapon /swap"
    )
    with node.configured(failSwapOn=False, memorySwap={"swapBehavior": "LimitedSwap"}):
        guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
        yield node
        node.guest.run("swapoff /swap 2>/dev/null; rm -f /swap")


@pytest.fixture
def namespace(guest_cluster: GuestCluster, node: Node) -> Iterator[Namespace]:
    namespace = guest_cluster.make_namespace("resources")
    yield namespace
    namespace.delete()


def start(namespace: Namespace, name: str, resources: Json) -> Json:
    namespace.add(name, until_term("c", resources=resources))
    return namespace.wait(name, is_ready, deadline_seconds=DEADLINE_SECONDS)


def resize(namespace: Namespace, name: str, limits: Json) -> None:
    resources = {"limits": limits, "requests": limits}
    change = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    namespace.kubectl("patch", "pod", name, "--subresource=resize", f"-p={json.dumps(change)}")


def has(pod: Json, limits: Json, *, pending: str = "") -> bool:
    """True if the statuses say that a pod has these limits, and no more than that it waits."""
    told = {"PodResizePending", "PodResizeInProgress"} & conditions(pod).keys()
    reasons = {conditions(pod)[each].get("reason") for each in told}
    of_container = container(pod)
    given = of_container["resources"]["limits"], of_container["allocatedResources"]
    return reasons == ({pending} if pending else set()) and given == (limits, limits)


def process_of(node: Node, pod: Json) -> int:
    """The first process of the pod's container."""
    return node.processes()[container(pod)["containerID"].partition("://")[2]]


def started_at(node: Node, process: int) -> str:
    """When a process was started, by the kernel's clock."""
    said = node.guest.read(f"/proc/{process}/stat").decode()
    return said.rpartition(")")[2].split()[_START_TIME]


def values(node: Node, process: int, *names: str) -> list[list[str]]:
    """The first words of files of a process' cgroup, and of that of its pod."""
    path = node.guest.read(f"/proc/{process}/cgroup").decode().strip().partition("::")[2]
    own = f"/sys/fs/cgroup{path}"
    folders = own, own.rpartition("/")[0]
    return [
        [node.guest.read(f"{folder}/{name}").decode().split()[0] for name in names]
        for folder in folders
    ]


def limits_of(node: Node, process: int) -> list[list[str]]:
    """CPU quota in microseconds and memory limit in bytes, of container and pod."""
    return values(node, process, "cpu.max", "memory.max")


def weight_of_pod(node: Node, process: int) -> str:
    """The share of CPU of a pod; that of its container depends on the age of runc."""
    return values(node, process, "cpu.weight")[1][0]


def test_a_container_is_resized_up_and_down_while_its_process_runs_on(
    namespace: Namespace, node: Node
) -> None:
    before = start(namespace, "resized", {"limits": SMALL})
    process = process_of(node, before)
    began = started_at(node, process)
    small, large = ["10000", str(32 * MIB)], ["20000", str(64 * MIB)]
    assert limits_of(node, process) == [small] * 2
    for limits, kernel, weight in ((LARGE, large, "29"), (SMALL, small, "17")):
        resize(namespace, "resized", limits)
        after = namespace.wait("resized", partial(has, limits=limits))
        assert limits_of(node, process) == [kernel] * 2
        assert weight_of_pod(node, process) == weight
        assert started_at(node, process) == began
        assert container(after)["restartCount"] == 0


def test_after_a_boot_a_pod_has_what_it_was_granted_and_not_what_it_waits_for(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node
) -> None:
    start(namespace, "other", {"requests": {"cpu": "500m"}})
    start(namespace, "resized", {"limits": SMALL})
    resize(namespace, "resized", LARGE)
    namespace.wait("resized", partial(has, limits=LARGE))
    resize(namespace, "resized", TOO_MUCH)
    waits = namespace.wait("resized", partial(has, limits=LARGE, pending="Deferred"))
    old = container(waits)["containerID"]

    node.guest.reboot()
    node.guest.run("swapon /swap")
    node.systemctl("restart", UNIT)
    after = namespace.wait(
        "resized",
        lambda pod: container(pod)["containerID"] != old and is_ready(pod),
        deadline_seconds=DEADLINE_SECONDS,
    )
    assert container(after)["restartCount"] == 1
    again = namespace.wait("resized", partial(has, limits=LARGE, pending="Deferred"))
    large = ["20000", str(64 * MIB)]
    assert limits_of(node, process_of(node, again)) == [large] * 2
    resize(namespace, "resized", SMALL)
    namespace.wait("resized", partial(has, limits=SMALL))
    assert container(namespace.pod("resized"))["restartCount"] == 1


def test_a_burstable_container_has_its_part_of_the_swap_and_no_other_has_any(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node
) -> None:
    status = guest_cluster.api.get(f"/api/v1/nodes/{guest_cluster.node}")["status"]
    swap_bytes = status["nodeInfo"]["swap"]["capacity"]
    assert SWAP_MIB - 1 <= swap_bytes / MIB <= SWAP_MIB
    memory_bytes = int(status["capacity"]["memory"].removesuffix("Ki")) * 1024
    request_bytes = 48 * MIB
    part = request_bytes * swap_bytes // memory_bytes // 4096 * 4096
    assert part > 0
    burstable = {"requests": {"memory": "48Mi"}, "limits": {"memory": "96Mi"}}
    # Its request is its limit: nothing of it is burstable.
    fixed = {"requests": {"memory": "48Mi", "cpu": "10m"}, "limits": {"memory": "48Mi"}}
    expected = {
        "burstable": (burstable, str(part)),
        "fixed": (fixed, "0"),
        "guaranteed": ({"limits": SMALL}, "0"),
        "besteffort": ({}, "0"),
    }
    for name, (resources, _) in expected.items():
        namespace.add(name, until_term("c", resources=resources))
    for name, (_, limit) in expected.items():
        pod = namespace.wait(name, is_ready, deadline_seconds=DEADLINE_SECONDS)
        own, of_pod = values(node, process_of(node, pod), "memory.swap.max")
        assert (name, own, of_pod) == (name, [limit], ["max"])


def test_without_the_setting_no_container_swaps(
    guest_cluster: GuestCluster, namespace: Namespace, node: Node
) -> None:
    with node.configured(memorySwap={}):
        guest_cluster.wait_node_ready(deadline_seconds=DEADLINE_SECONDS)
        resources = {"requests": {"memory": "48Mi"}, "limits": {"memory": "96Mi"}}
        pod = start(namespace, "burstable", resources)
        assert values(node, process_of(node, pod), "memory.swap.max")[0] == ["0"]
