"""What goes over the wire when the node changes."""

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apiserver.server import ApiServer
from tests.unit.node.nodes import LATER, NOW, a_node, a_profile, seen
from trio_kubelet.k8s import (
    NODES,
    ContainerImage,
    Node,
    NodeAddress,
    NodeCondition,
    NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures,
    NodeStatus,
    NodeSystemInfo,
    Quantity,
)
from trio_kubelet.node.node_object import updated_node
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.reporter import node_patch
from trio_kubelet.tasks.clock import SystemClock

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


names = st.sampled_from(["a", "b.example.com/x", "kubernetes.io/os"])
texts = st.text(alphabet="abc", max_size=3)
amounts = st.integers(0, 3).map(Quantity.from_bytes)
addresses = st.builds(NodeAddress, type=st.sampled_from(["InternalIP", "Hostname"]), address=texts)
images = st.builds(
    ContainerImage, names=st.lists(texts, max_size=2).map(tuple), size_bytes=st.integers(1, 9)
)
features = st.builds(NodeRuntimeHandlerFeatures, user_namespaces=st.booleans())
handlers = st.builds(NodeRuntimeHandler, name=texts, features=features)
foreign = NodeCondition(type="NetworkUnavailable", status="False", reason="RouteCreated")
own = st.builds(
    NodeCondition,
    type=st.just("Ready"),
    status=st.sampled_from(["True", "False"]),
    message=texts,
    last_heartbeat_time=st.sampled_from([NOW, LATER]),
)
statuses = st.builds(
    NodeStatus,
    capacity=st.dictionaries(names, amounts),
    allocatable=st.dictionaries(names, amounts),
    conditions=own.map(lambda ready: (foreign, ready)),
    addresses=st.lists(addresses, max_size=3).map(tuple),
    node_info=st.builds(NodeSystemInfo, boot_id=texts, kubelet_version=texts),
    images=st.lists(images, max_size=2).map(tuple),
    runtime_handlers=st.lists(handlers, max_size=2).map(tuple),
    declared_features=st.lists(texts, max_size=2).map(tuple),
)
nodes = st.builds(
    a_node,
    statuses,
    labels=st.dictionaries(names, texts),
    annotations=st.dictionaries(names, texts),
)


@settings(max_examples=50)
@given(before=nodes, after=nodes)
def test_an_api_server_makes_of_the_patch_what_the_node_meant(before: Node, after: Node) -> None:
    server = ApiServer(clock=SystemClock())
    server.create(NODES, before)
    server.patch(NODES, before.metadata.name, body=node_patch(before, after), subresource="status")
    made = server.get(NODES, before.metadata.name)
    assert made.metadata.labels == after.metadata.labels
    assert made.metadata.annotations == after.metadata.annotations
    assert by_type(made.status) == by_type(after.status)


def by_type(status: NodeStatus) -> NodeStatus:
    """A status with its conditions in an order of its own: the API does not keep one."""
    return evolve(status, conditions=tuple(sorted(status.conditions, key=lambda c: c.type)))
