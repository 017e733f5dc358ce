"""The object that a node makes, and what it mends on one that is there."""

from attrs import evolve

from tests.unit.node.nodes import GIB, NAME, NOW, a_machine, a_profile, seen
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.config.parts import RegistrationTaint
from trio_kubelet.k8s import Node, NodeSpec, NodeStatus, ObjectMeta, Quantity, Taint
from trio_kubelet.node.machine import MachineSize
from trio_kubelet.node.node_object import adopted_node, initial_node
from trio_kubelet.node.profile import NodeProfile

ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"


def initial(profile: NodeProfile | None = None) -> Node:
    return initial_node(profile or a_profile(), seen(), NOW)


def test_a_new_node_has_name_labels_annotation_and_status() -> None:
    node = initial()
    assert node.metadata.name == NAME
    assert node.metadata.labels == {
        "kubernetes.io/hostname": NAME,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
    }
    assert node.metadata.annotations == {ATTACH: "true"}
    assert node.spec == NodeSpec()
    assert node.status.capacity["pods"] == Quantity(110)


def test_the_settings_add_labels_taints_and_a_provider_id() -> None:
    dedicated = Taint(key="dedicated", value="db", effect="NoSchedule")
    node = initial(
        a_profile(
            options=NodeOptions(node_labels={"tier": "db", "kubernetes.io/hostname": "alias"}),
            register_with_taints=(
                RegistrationTaint(key="dedicated", value="db", effect="NoSchedule"),
            ),
            provider_id="example://7",
            enable_controller_attach_detach=False,
        )
    )
    assert node.metadata.labels["tier"] == "db"
    assert node.metadata.labels["kubernetes.io/hostname"] == "alias"
    assert node.metadata.annotations == {}
    assert node.spec == NodeSpec(taints=(dedicated,), provider_id="example://7")


def test_a_node_of_an_external_cloud_is_kept_free_until_the_cloud_has_looked() -> None:
    (taint,) = initial(a_profile(options=NodeOptions(cloud_provider="external"))).spec.taints
    assert (taint.key, taint.value, taint.effect) == (
        "node.cloudprovider.kubernetes.io/uninitialized",
        "true",
        "NoSchedule",
    )


def test_a_node_that_is_as_it_should_be_is_left_alone() -> None:
    assert adopted_node(initial(), initial()) == initial()


def test_own_labels_are_put_right_and_others_stay() -> None:
    existing = evolve(
        initial(),
        metadata=ObjectMeta(
            name=NAME,
            labels={"kubernetes.io/arch": "arm64", "team": "red", "tier": "web"},
            annotations={"note": "kept"},
        ),
    )
    labelled = a_profile(options=NodeOptions(node_labels={"tier": "db"}))
    adopted = adopted_node(initial(labelled), existing)
    assert adopted.metadata.labels["kubernetes.io/arch"] == "amd64"
    assert adopted.metadata.labels["team"] == "red"
    # Not a label of every node: an administrator may have changed it since.
    assert adopted.metadata.labels["tier"] == "web"
    assert adopted.metadata.annotations == {"note": "kept", ATTACH: "true"}


def test_an_own_label_that_is_to_be_empty_is_taken_off() -> None:
    zone = "topology.kubernetes.io/zone"
    existing = evolve(initial(), metadata=ObjectMeta(name=NAME, labels={zone: "a"}))
    without = a_profile(options=NodeOptions(node_labels={zone: ""}))
    assert zone not in adopted_node(initial(without), existing).metadata.labels


def test_the_annotation_goes_when_the_node_attaches_volumes_itself() -> None:
    adopted = adopted_node(initial(a_profile(enable_controller_attach_detach=False)), initial())
    assert ATTACH not in adopted.metadata.annotations


def test_taints_of_the_cluster_stay() -> None:
    cordoned = NodeSpec(
        unschedulable=True,
        taints=(Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),),
    )
    existing = evolve(initial(), spec=cordoned)
    dedicated = RegistrationTaint(key="dedicated", effect="NoSchedule")
    new = initial(a_profile(register_with_taints=(dedicated,)))
    assert adopted_node(new, existing).spec == cordoned


def test_extended_resources_are_nought_until_their_plugins_come_back() -> None:
    status = NodeStatus(
        capacity={**initial().status.capacity, "example.com/gpu": Quantity(4)},
        allocatable={**initial().status.allocatable, "example.com/gpu": Quantity(4)},
    )
    adopted = adopted_node(initial(), evolve(initial(), status=status))
    assert adopted.status.capacity["example.com/gpu"] == Quantity(0)
    assert adopted.status.allocatable["example.com/gpu"] == Quantity(0)


def test_huge_pages_are_those_that_the_machine_has_now() -> None:
    old = a_machine(size=MachineSize(cpu_milli=4000, memory_bytes=8 * GIB, hugepages={GIB: GIB}))
    existing = initial(a_profile(old))
    adopted = adopted_node(initial(), existing)
    assert "hugepages-1Gi" not in adopted.status.capacity
    assert "hugepages-1Gi" not in adopted.status.allocatable
    assert adopted.status.capacity["hugepages-2Mi"] == Quantity(0)


def test_a_node_made_by_hand_gets_the_resources_at_once() -> None:
    bare = Node(metadata=ObjectMeta(name=NAME))
    assert adopted_node(initial(), bare).status.capacity == initial().status.capacity
