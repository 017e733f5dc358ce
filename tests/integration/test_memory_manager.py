"""Memory of NUMA nodes on a real containerd: what a container may use, and what is kept of it."""

import json
from collections.abc import Iterator

import pytest

from lab.agent import LabAgent, pod_manifest
from lab.containerd import Containerd
from tests.integration.pods import Node, container_ids, until_term

MIB = 1 << 20


@pytest.fixture(scope="module")
def node(containerd: Containerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    agent = LabAgent(tmp_path_factory.mktemp("node"), endpoint=containerd.endpoint)
    agent.folder.mkdir(exist_ok=True)
    agent.settings = {
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
        "evictionHard": {"memory.available": "100Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    }
    with agent:
        yield Node(agent=agent, containerd=containerd)


def test_a_guaranteed_container_has_memory_of_one_node_and_others_of_all(node: Node) -> None:
    limits = {"limits": {"cpu": "100m", "memory": "64Mi"}}
    pod = node.run(
        pod_manifest("near", until_term("c", resources=limits), until_term("d", resources=limits))
    )
    other = node.run(pod_manifest("anywhere", until_term("c")))
    spec = json.loads(node.containerd.ctr("containers", "info", container_ids(pod)["c"]))["Spec"]
    assert spec["linux"]["resources"]["cpu"]["mems"] == "0"
    spec = json.loads(node.containerd.ctr("containers", "info", container_ids(other)["c"]))["Spec"]
    assert "mems" not in spec["linux"]["resources"]["cpu"]

    record = json.loads((node.agent.root / "memory_manager_state").read_text())
    block = [{"numaAffinity": [0], "type": "memory", "size": 64 * MIB}]
    assert record["entries"] == {pod["metadata"]["uid"]: {"c": block, "d": block}}
    table = record["machineState"]["0"]["memoryMap"]["memory"]
    assert table["reserved"] == 128 * MIB
    assert table["systemReserved"] == 100 * MIB
    node.agent.stop()
    node.agent.start()
    assert json.loads((node.agent.root / "memory_manager_state").read_text()) == record
    node.remove("near", "anywhere")
    node.wait_gone("near")
    assert "entries" not in json.loads((node.agent.root / "memory_manager_state").read_text())
