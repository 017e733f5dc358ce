"""Exclusive CPUs on a node of a real API server: all but one, which is reserved.

What a container may run on is read off its process. Whoever has the node has the same settings.
"""

import json
import os
from collections.abc import Iterator, Mapping

import pytest
from attrs import frozen

from lab.agent import LabAgent
from lab.cluster_api import Json
from lab.go_kubelet import GoKubelet
from lab.processes import wait_until
from tests.e2e.cluster import (
    DEADLINE_SECONDS,
    Namespace,
    container,
    container_ids,
    is_over,
    is_ready,
    until_term,
)
from tests.e2e.local import AGENT, LocalCluster
from tests.missing import do_without
from trio_kubelet.resource_managers.cpu_sets import cpu_list, parsed_cpus
from trio_kubelet.resource_managers.cpu_state import CpuState, parsed
from trio_kubelet.resource_managers.memory_state import MemoryState
from trio_kubelet.resource_managers.memory_state import parsed as parsed_memory

ALL = parsed_cpus(cpu_list(os.sched_getaffinity(0)))
RESERVED, *OTHERS = sorted(ALL)
STATIC: Mapping[str, object] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": str(RESERVED),
    "cpuManagerReconcilePeriod": "1s",
}
MOST = str(len(OTHERS))
"""The number of CPUs of a container that leaves the reserved one to all others."""

BY_POD: Mapping[str, object] = {
    **STATIC,
    "memoryManagerPolicy": "Static",
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "featureGates": {"PodLevelResourceManagers": True},
}
"""Pods with resources of their own have their CPUs and memory as one part."""


@frozen
class CpuNode:
    """The node, in whosever hands, with these settings."""

    cluster: LocalCluster
    settings: Mapping[str, object]

    def hand_over(self, kind: type[LabAgent]) -> None:
        """Let another one have it, who has the pods when this returns."""
        self.cluster.hand_over(kind, **self.settings)
        self.cluster.wait_node_ready()

    def cpus(self, pod: Json) -> str:
        """The CPUs on which the first process of a pod's container may run."""
        container_id = container(pod)["containerID"].rpartition("/")[2]
        tasks = self.cluster.containerd.ctr("tasks", "list").splitlines()[1:]
        (pid,) = (line.split()[1] for line in tasks if line.split()[0] == container_id)
        return cpu_list(os.sched_getaffinity(int(pid)))

    def wait_for_cpus(self, pod: Json, cpus: str) -> None:
        """Wait until it may run on these alone."""
        wait_until(
            lambda: self.cpus(pod) == cpus,
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"its CPUs are {self.cpus(pod)}, not {cpus}",
        )

    def record(self) -> CpuState:
        """What the CPU manager wrote down."""
        return parsed((self.cluster.agent.root / "cpu_manager_state").read_text())

    def memory(self) -> MemoryState:
        """What the memory manager wrote down."""
        return parsed_memory((self.cluster.agent.root / "memory_manager_state").read_text())


RECORDS = {
    "cpu_manager_state": ("cpuManagerPolicy", "none"),
    "memory_manager_state": ("memoryManagerPolicy", "None"),
}
"""The files of the managers: the setting of the policy of each, and its default."""


def policies(cluster: LocalCluster) -> Mapping[str, object]:
    """The policies that the records of the managers are of."""
    found = {name: cluster.agent.root / name for name in RECORDS}
    return {
        name: json.loads(file.read_text())["policyName"] if file.exists() else RECORDS[name][1]
        for name, file in found.items()
    }


def wanted_policies(settings: Mapping[str, object]) -> Mapping[str, object]:
    return {name: settings.get(field, default) for name, (field, default) in RECORDS.items()}


@pytest.fixture
def node(local_cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[CpuNode]:
    """The node with the static policy, or other settings that a test asks for.

    In the end the agent has it without.
    """
    settings: Mapping[str, object] = getattr(request, "param", STATIC)
    if len(ALL) < 2:
        do_without("a machine with two CPUs")
    local_cluster.restart_agent(**settings)
    try:
        local_cluster.api.wait_for(
            f"/api/v1/nodes/{local_cluster.node}",
            lambda node: node["status"]["allocatable"]["cpu"] == MOST,
        )
        local_cluster.wait_node_ready()
        # The Node may say all that of the agent before.
        wait_until(
            lambda: policies(local_cluster) == wanted_policies(settings),
            deadline_seconds=DEADLINE_SECONDS,
            else_say=lambda: f"the records are of {policies(local_cluster)}",
        )
        yield CpuNode(local_cluster, settings)
    finally:
        local_cluster.hand_over(AGENT)
        local_cluster.wait_node_ready()


@pytest.fixture
def pods(node: CpuNode, namespace: Namespace) -> Iterator[Namespace]:
    """A namespace whose pods have gone before the node changes its policy."""
    yield namespace
    for pod in namespace.pods():
        namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    namespace.wait_all(lambda left: not left)


def alone(name: str = "c", cpus: str = MOST) -> Json:
    """A container with CPUs for itself."""
    return until_term(name, resources={"limits": {"cpu": cpus, "memory": "32Mi"}})


def test_a_container_has_its_cpus_alone_and_all_others_the_rest(
    node: CpuNode, pods: Namespace
) -> None:
    shared = pods.run("shared", until_term("c"))
    assert node.cpus(shared) == cpu_list(ALL)
    first = pods.run("first", alone())
    assert node.cpus(first) == cpu_list(OTHERS)
    node.wait_for_cpus(shared, str(RESERVED))
    pods.add("second", alone())
    pods.wait_event("second", "FailedScheduling", "Insufficient cpu")
    pods.add("bound", alone(), nodeName=node.cluster.node)
    assert pods.wait("bound", is_over)["status"]["reason"] == "OutOfcpu"
    pods.kubectl("delete", "pod", "first", "bound")
    assert node.cpus(pods.wait("second", is_ready)) == cpu_list(OTHERS)
    pods.kubectl("delete", "pod", "second")
    node.wait_for_cpus(shared, cpu_list(ALL))


def test_cpus_stay_with_their_containers_over_a_kill_of_the_agent(
    node: CpuNode, pods: Namespace
) -> None:
    shared, first = pods.run("shared", until_term("c")), pods.run("first", alone())
    node.wait_for_cpus(shared, str(RESERVED))
    record = node.record()
    node.cluster.kill_agent()
    node.cluster.start_agent()
    late = pods.run("late", until_term("c"))
    assert [node.cpus(each) for each in (shared, late)] == [str(RESERVED)] * 2
    assert node.cpus(first) == cpu_list(OTHERS)
    assert node.record() == record
    assert container_ids([pods.pod("first")]) == container_ids([first])


@pytest.mark.skipif(AGENT is GoKubelet, reason="the agent has the node first")
def test_a_node_with_exclusive_cpus_changes_hands_both_ways(
    node: CpuNode, pods: Namespace, go_kubelet: type[GoKubelet]
) -> None:
    shared, first = pods.run("shared", until_term("c")), pods.run("first", alone())
    before, record = container_ids([shared, first]), node.record()
    assert record.assignments == {first["metadata"]["uid"]: {"c": frozenset(OTHERS)}}
    node.hand_over(go_kubelet)
    late = pods.run("late", until_term("c"))
    node.wait_for_cpus(late, str(RESERVED))
    assert node.record() == record
    pods.add("bound", alone(), nodeName=node.cluster.node)
    # The Go kubelet asks its CPU manager before it sums up requests.
    assert pods.wait("bound", is_over)["status"]["reason"] == "UnexpectedAdmissionError"
    node.hand_over(AGENT)
    pods.kubectl("delete", "pod", "late")
    assert (node.cpus(shared), node.cpus(first)) == (str(RESERVED), cpu_list(OTHERS))
    assert node.record() == record
    assert container_ids([pods.pod(name) for name in ("shared", "first")]) == before

    node.hand_over(go_kubelet)
    pods.kubectl("delete", "pod", "first")
    second = pods.run("second", alone())
    node.wait_for_cpus(second, cpu_list(OTHERS))
    record = node.record()
    assert record.assignments == {second["metadata"]["uid"]: {"c": frozenset(OTHERS)}}
    node.hand_over(AGENT)
    last = pods.run("last", until_term("c"))
    assert [node.cpus(each) for each in (shared, last)] == [str(RESERVED)] * 2
    assert node.cpus(second) == cpu_list(OTHERS)
    assert node.record() == record
    assert container_ids([pods.pod("second")]) == container_ids([second])
    assert container(pods.pod("second"))["restartCount"] == 0


@pytest.mark.skipif(AGENT is GoKubelet, reason="the agent takes the node over")
@pytest.mark.parametrize("node", [BY_POD], indirect=True, ids=["by-pod"])
def test_a_pod_with_cpus_as_one_part_keeps_them_when_its_node_is_taken_over(
    node: CpuNode, pods: Namespace, go_kubelet: type[GoKubelet]
) -> None:
    # Not the other way: a Go kubelet that starts rejects such pods, its own as well.
    node.hand_over(go_kubelet)
    amounts = {"cpu": MOST, "memory": "64Mi"}
    whole = {"requests": amounts, "limits": amounts}
    first = pods.run("first", alone(), resources=whole)
    record, memory = node.record(), node.memory()
    assert record.wholes == {first["metadata"]["uid"]: frozenset(OTHERS)}
    assert memory.wholes is not None
    assert memory.wholes.keys() == record.wholes.keys()
    node.hand_over(AGENT)
    shared = pods.run("shared", until_term("c"))
    assert (node.cpus(first), node.cpus(shared)) == (cpu_list(OTHERS), str(RESERVED))
    assert (node.record(), node.memory()) == (record, memory)
    assert container_ids([pods.pod("first")]) == container_ids([first])
    assert container(pods.pod("first"))["restartCount"] == 0

    pods.kubectl("delete", "pod", "first")
    node.cluster.kill_agent()
    node.cluster.start_agent()
    second = pods.run("second", alone(), resources=whole)
    assert node.cpus(second) == cpu_list(OTHERS)
