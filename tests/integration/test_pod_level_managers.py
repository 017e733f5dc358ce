"""Pods with CPUs and memory of their own on a real containerd, read off the kernel."""

import json
import os
from collections.abc import Iterator

import pytest

from lab import host
from lab.agent import Json, LabAgent, pod_manifest
from lab.containerd import Containerd
from tests.integration.pods import CGROUPS, Node, container_ids, until_term
from tests.missing import do_without
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus

ALL = parsed_cpus(cpu_list(os.sched_getaffinity(0)))
RESERVED, *OTHERS = sorted(ALL)
MIB = 1 << 20
WHOLE: Json = {"cpu": str(len(OTHERS)), "memory": "128Mi"}
"""All CPUs but the reserved one."""


@pytest.fixture
def node(
    containerd: Containerd, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Node]:
    """An agent that serves pods in the scope that the test asks for; None is the gate off."""
    if not OTHERS:
        do_without("a machine with two CPUs")
    scope: str | None = request.param
    agent = LabAgent(tmp_path_factory.mktemp("node"), endpoint=containerd.endpoint)
    agent.folder.mkdir(exist_ok=True)
    agent.settings = {
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": str(RESERVED),
        "cpuManagerReconcilePeriod": "1h",
        "memoryManagerPolicy": "Static",
        "evictionHard": {"memory.available": "100Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": scope or "pod",
        "featureGates": {"PodLevelResourceManagers": scope is not None},
    }
    with agent:
        yield Node(agent=agent, containerd=containerd)


def whole_pod(name: str, *containers: Json, **spec: object) -> Json:
    return pod_manifest(name, *containers, resources={"limits": WHOLE, "requests": WHOLE}, **spec)


def cgroup(node: Node, pod: Json, container: str, v1: str, v2: str) -> str:
    """A file of the cgroup of a container, or of the pod itself without one."""
    root, uid = node.agent.cgroup_root.strip("/"), pod["metadata"]["uid"]
    controller, _, _ = v1.partition(".")
    folder = CGROUPS if host.cgroup_version() == 2 else CGROUPS / controller
    path = folder / f"{root}/kubepods/pod{uid}" / (container and container_ids(pod)[container])
    return (path / (v2 if host.cgroup_version() == 2 else v1)).read_text().strip()


def cpus(node: Node, pod: Json) -> dict[str, str]:
    names = [each["name"] for each in pod["status"]["containerStatuses"]]
    return {name: cgroup(node, pod, name, "cpuset.cpus", "cpuset.cpus") for name in names}


def has_quota(node: Node, pod: Json, container: str = "") -> bool:
    text = cgroup(node, pod, container, "cpu.cfs_quota_us", "cpu.max")
    return not text.startswith(("-1", "max"))


@pytest.mark.parametrize("node", ["pod"], indirect=True)
def test_containers_share_the_cpus_of_their_pod_alone(node: Node) -> None:
    other = node.run(pod_manifest("other", until_term("c")))
    pod = node.run(whole_pod("whole", until_term("a"), until_term("b")))
    assert cpus(node, pod) == dict.fromkeys("ab", cpu_list(OTHERS))
    assert has_quota(node, pod)
    assert all(has_quota(node, pod, name) for name in "ab")

    uid = pod["metadata"]["uid"]
    record = json.loads((node.agent.root / "cpu_manager_state").read_text())
    assert record["podEntries"] == {uid: {"cpuSet": cpu_list(OTHERS)}}
    assert record["entries"] == {uid: dict.fromkeys("ab", cpu_list(OTHERS))}
    blocks = json.loads((node.agent.root / "memory_manager_state").read_text())
    block = {"numaAffinity": [0], "type": "memory", "size": 128 * MIB}
    assert blocks["podEntries"] == {uid: {"memoryBlocks": [block]}}

    before = container_ids(pod)
    node.agent.kill()
    node.agent.start()
    pod = node.wait("whole", lambda seen: seen["status"].get("phase") == "Running")
    assert container_ids(pod) == before
    assert cpus(node, pod) == dict.fromkeys("ab", cpu_list(OTHERS))
    assert json.loads((node.agent.root / "cpu_manager_state").read_text()) == record
    shared = {"cpuset_of": cgroup_of_best_effort(node, other)}
    assert shared == {"cpuset_of": str(RESERVED)}


def cgroup_of_best_effort(node: Node, pod: Json) -> str:
    root, uid = node.agent.cgroup_root.strip("/"), pod["metadata"]["uid"]
    folder = CGROUPS if host.cgroup_version() == 2 else CGROUPS / "cpuset"
    path = folder / f"{root}/kubepods/besteffort/pod{uid}" / container_ids(pod)["c"]
    return (path / "cpuset.cpus").read_text().strip()


@pytest.mark.parametrize("node", ["pod"], indirect=True)
def test_a_slice_of_all_there_is_leaves_no_pool(node: Node) -> None:
    slice_of_all = until_term("a", resources={"limits": {**WHOLE, "memory": "64Mi"}})
    node.add(whole_pod("full", slice_of_all, until_term("b")))
    full = node.wait("full", lambda seen: seen["status"].get("phase") == "Failed")
    assert full["status"]["reason"] == "EmptyPodSharedPoolError"
    node.remove("full")

    pod = node.run(whole_pod("sliced", slice_of_all, initContainers=[]))
    assert cpus(node, pod) == {"a": cpu_list(OTHERS)}
    assert not has_quota(node, pod)
    assert not has_quota(node, pod, "a")


@pytest.mark.parametrize("node", ["container"], indirect=True)
def test_in_the_scope_of_containers_the_others_share_those_of_the_node(node: Node) -> None:
    mine = until_term("a", resources={"limits": {**WHOLE, "memory": "64Mi"}})
    pod = node.run(whole_pod("mixed", mine, until_term("b")))
    assert cpus(node, pod) == {"a": cpu_list(OTHERS), "b": str(RESERVED)}
    assert has_quota(node, pod)
    assert not has_quota(node, pod, "a")


@pytest.mark.parametrize("node", [None], indirect=True)
def test_with_the_gate_off_all_share_those_of_the_node(node: Node) -> None:
    mine = until_term("a", resources={"limits": {**WHOLE, "memory": "64Mi"}})
    pod = node.run(whole_pod("mixed", mine, until_term("b")))
    assert cpus(node, pod) == dict.fromkeys("ab", cpu_list(ALL))
    assert has_quota(node, pod)
    assert "entries" not in json.loads((node.agent.root / "cpu_manager_state").read_text())
