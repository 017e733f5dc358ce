"""What goes over the wire when the node changes."""

from attrs import evolve

from tests.unit.node.nodes import LATER, NOW, a_node, a_profile, seen
from trio_kubelet.k8s import ContainerImage, NodeCondition, Quantity
from trio_kubelet.node.observation import Observation
from trio_kubelet.node.patch import node_patch
from trio_kubelet.node.status import updated_node

FIRST = updated_node(a_profile(), seen(), a_node(), NOW)


def status_patch(observed: Observation) -> dict[str, object]:
    after = updated_node(a_profile(), observed, FIRST, LATER)
    body = node_patch(FIRST, after)
    assert body.keys() == {"status"}
    status = body["status"]
    assert isinstance(status, dict)
    return status


def test_a_heartbeat_is_the_four_conditions_and_nothing_else() -> None:
    patch = status_patch(seen())
    assert patch.keys() == {"conditions"}
    conditions = patch["conditions"]
    assert isinstance(conditions, list)
    assert [c["type"] for c in conditions] == [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "Ready",
    ]
    assert conditions[3] == {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": "2026-03-01T12:05:00Z",
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }


def test_conditions_of_others_are_not_sent() -> None:
    foreign = NodeCondition(type="NetworkUnavailable", status="False")
    before = evolve(
        FIRST, status=evolve(FIRST.status, conditions=(foreign, *FIRST.status.conditions))
    )
    body = node_patch(before, updated_node(a_profile(), seen(), before, LATER))
    assert "NetworkUnavailable" not in str(body)


def test_addresses_are_replaced_as_a_list() -> None:
    assert status_patch(seen(addresses=("10.0.0.7", "fd00::7")))["addresses"] == [
        {"type": "InternalIP", "address": "10.0.0.7"},
        {"type": "InternalIP", "address": "fd00::7"},
        {"type": "Hostname", "address": "node-1"},
        {"$patch": "replace"},
    ]


def test_images_are_sent_whole() -> None:
    images = (ContainerImage(names=("a:1",), size_bytes=7),)
    assert status_patch(seen(images=images))["images"] == [{"names": ["a:1"], "sizeBytes": 7}]


def test_only_the_field_that_changed_is_sent_of_an_object() -> None:
    assert status_patch(seen(runtime="containerd://2.2.0"))["nodeInfo"] == {
        "containerRuntimeVersion": "containerd://2.2.0"
    }


def test_what_is_gone_is_null() -> None:
    capacity = {**FIRST.status.capacity, "hugepages-1Gi": Quantity("1Gi")}
    before = evolve(FIRST, status=evolve(FIRST.status, capacity=capacity))
    body = node_patch(before, FIRST)
    status = body["status"]
    assert isinstance(status, dict)
    assert status["capacity"] == {"hugepages-1Gi": None}


def test_labels_go_into_the_same_patch() -> None:
    stripped = evolve(FIRST, metadata=evolve(FIRST.metadata, labels={"x": "y"}))
    body = node_patch(stripped, updated_node(a_profile(), seen(), stripped, LATER))
    assert body["metadata"] == {
        "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    }
