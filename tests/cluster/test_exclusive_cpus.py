"""Exclusive CPUs and memory on cgroup v2, with both drivers, on a machine of two processors.

The packaged kernel of machines has neither cpusets nor a second processor; that of our own has, and
no NUMA: all memory is of one node. Processor 0 is reserved.
"""

from collections.abc import Iterator

import pytest

from lab import UnavailableError
from lab.agent import Json, pod_manifest
from lab.guest import images
from lab.guest.guest import Guest
from lab.guest.recipe import Kernel
from lab.images import SLEEPER
from tests.guest.node import ROOT, UNIT, Node, build_wheel
from tests.integration.pods import container_ids
from tests.missing import do_without
from trio_kubelet.resources import CgroupDriver

ONE_CPU: Json = {"limits": {"cpu": "1", "memory": "64Mi"}}
NONE: Json = {}
STATIC = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "cpuManagerReconcilePeriod": "1h",
    "memoryManagerPolicy": "Static",
    # As much as evictionHard keeps.
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
}
FILES = ("cpuset.cpus", "cpuset.mems", "cpu.max", "../cpu.max")
UNLIMITED = "max 100000"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    try:
        image = images.find(Kernel.OWN)
    except UnavailableError as reason:
        do_without(str(reason))
    with Guest(tmp_path_factory.mktemp("guest"), image=image, processors=2) as guest:
        node = Node(guest)
        node.install(build_wheel(tmp_path_factory.mktemp("wheel")))
        yield node


@pytest.fixture(scope="module", params=[CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD])
def node(request: pytest.FixtureRequest, machine: Node) -> Iterator[Node]:
    with machine.driver(request.param, **STATIC):
        yield machine


def run(node: Node, name: str, resources: Json) -> Json:
    """Run a pod of one container."""
    node.add(pod_manifest(name, {"name": "c", "image": SLEEPER, "resources": resources}))
    return node.wait_for_pod(name)


def held(node: Node, pod: Json) -> list[str]:
    """What is in the files of the cgroup of a pod's container, and of its pod."""
    find = f"find /sys/fs/cgroup -type d -name '*{container_ids(pod)['c']}*'"
    return node.guest.run(f"cd $({find}); head -qn1 {' '.join(FILES)}").splitlines()


def wait_for_cpus(node: Node, pod: Json, cpus: str) -> None:
    node.wait_for(lambda: held(node, pod)[0] == cpus, lambda: f"{held(node, pod)}, not {cpus}")


def kill_agent(node: Node) -> None:
    pid = node.pid
    node.guest.run("kill", "-KILL", str(pid))
    node.wait_for_another(pid)


def test_a_container_has_a_cpu_alone_and_memory_of_its_node_until_its_pod_goes(node: Node) -> None:
    shared = run(node, "shared", NONE)
    assert held(node, shared) == ["0-1", "", UNLIMITED, UNLIMITED]
    alone = run(node, "alone", ONE_CPU)
    assert held(node, alone) == ["1", "0", UNLIMITED, UNLIMITED]
    wait_for_cpus(node, shared, "0")

    kill_agent(node)
    again = node.wait_for_pod("alone")
    assert container_ids(again) == container_ids(alone)
    assert held(node, again) == ["1", "0", UNLIMITED, UNLIMITED]
    wait_for_cpus(node, shared, "0")

    node.remove("alone")
    wait_for_cpus(node, shared, "0-1")
    node.remove("shared")
    assert "entries" not in kept(node)


def test_after_a_reboot_containers_have_what_they_had(node: Node) -> None:
    run(node, "shared", NONE)
    before = run(node, "alone", ONE_CPU)
    record = kept(node)
    node.guest.reboot()
    node.systemctl("is-active", UNIT)

    def is_another(pod: Json) -> bool:
        return container_ids(pod)["c"] not in ("", container_ids(before)["c"])

    alone = node.wait_for_pod("alone", is_another)
    node.wait_for_pod("alone")
    assert held(node, alone) == ["1", "0", UNLIMITED, UNLIMITED]
    assert kept(node) == record
    node.remove("alone", "shared")


def kept(node: Node) -> str:
    """The record of the CPU manager."""
    return node.guest.read(f"{ROOT}/cpu_manager_state").decode()
