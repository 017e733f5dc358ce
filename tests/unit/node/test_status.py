"""The status of the Node object."""

from attrs import evolve

from tests.unit.node.nodes import (
    LATER,
    NAME,
    NOW,
    a_machine,
    a_node,
    a_profile,
    condition,
    seen,
)
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import (
    AttachedVolume,
    ContainerImage,
    NodeAddress,
    NodeStatus,
    NodeSystemInfo,
    Quantity,
)
from trio_kubelet.node.conditions import is_ready
from trio_kubelet.node.node_object import has_changed, node_status, updated_node
from trio_kubelet.node.observer import (
    Observation,
    container_images,
    runtime_words,
)
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.handlers import RuntimeFeatures

NOTHING = NodeStatus()


def status(
    profile: NodeProfile | None = None,
    observed: Observation | None = None,
    previous: NodeStatus = NOTHING,
) -> NodeStatus:
    return node_status(profile or a_profile(), observed or seen(), previous, NOW)


def test_a_new_node_tells_all_that_a_node_tells() -> None:
    found = status()
    assert found.capacity["cpu"] == Quantity(4)
    assert found.allocatable["memory"].canonical == "8092Mi"
    assert found.node_info == NodeSystemInfo(
        machine_id="3d1219c7",
        system_uuid="4c4c4544-0042",
        boot_id="boot-1",
        kernel_version="6.12.1",
        os_image="Debian GNU/Linux 13 (trixie)",
        container_runtime_version="containerd://2.1.4",
        kubelet_version="v1.36.3",
        operating_system="linux",
        architecture="amd64",
    )
    assert [(a.type, a.address) for a in found.addresses] == [
        ("InternalIP", "10.0.0.7"),
        ("Hostname", NAME),
    ]
    assert found.daemon_endpoints is not None
    assert found.daemon_endpoints.kubelet_endpoint is not None
    assert found.daemon_endpoints.kubelet_endpoint.port == 10250
    assert is_ready(found.conditions)
    assert found.phase == ""


def test_port_and_version_are_those_that_the_settings_name() -> None:
    found = status(a_profile(options=NodeOptions(version="v1.35.0"), port=10251))
    assert found.node_info is not None
    assert found.node_info.kubelet_version == "v1.35.0"
    assert found.daemon_endpoints is not None
    assert found.daemon_endpoints.kubelet_endpoint is not None
    assert found.daemon_endpoints.kubelet_endpoint.port == 10251


def test_a_server_that_is_switched_off_has_no_endpoint() -> None:
    found = status(a_profile(enable_server=False, port=10251)).daemon_endpoints
    assert found is not None
    assert found.kubelet_endpoint is None


def test_swap_is_told_where_there_is_some() -> None:
    info = status(a_profile(a_machine(swap_bytes=1 << 30))).node_info
    assert info is not None
    assert info.swap is not None
    assert info.swap.capacity == 1 << 30


def test_a_runtime_that_does_not_answer_keeps_its_version() -> None:
    info = status(observed=seen(runtime=""), previous=status()).node_info
    assert info is not None
    assert info.container_runtime_version == "containerd://2.1.4"


def test_extended_resources_of_others_survive_and_those_taken_back_go() -> None:
    previous = NodeStatus(
        capacity={"example.com/gpu": Quantity(2)},
        allocatable={"example.com/gpu": Quantity(2), "example.com/fpga": Quantity(1)},
    )
    found = status(previous=previous)
    assert found.capacity["example.com/gpu"] == Quantity(2)
    assert found.allocatable["example.com/gpu"] == Quantity(2)
    assert "example.com/fpga" not in found.allocatable


def test_volumes_that_a_controller_attached_stay() -> None:
    attached = (AttachedVolume(name="kubernetes.io/csi/x", device_path="/dev/x"),)
    assert status(previous=NodeStatus(volumes_attached=attached)).volumes_attached == attached


def test_addresses_that_cannot_be_told_stay_as_they_are() -> None:
    assert status(observed=seen(addresses=None), previous=status()).addresses == status().addresses


def test_pressure_and_errors_become_conditions() -> None:
    found = status(observed=seen(pressures=Pressures(memory=True), errors=("no network",)))
    assert condition(found, "MemoryPressure").status == "True"
    assert condition(found, "Ready").message == "no network"


def test_a_node_without_disk_space_to_tell_of_is_not_ready() -> None:
    found = status(a_profile(a_machine(storage_bytes=None)))
    assert condition(found, "Ready").message == (
        "missing node capacity for resources: ephemeral-storage"
    )


def test_a_cloud_providers_addresses_count_more_than_the_nodes_own() -> None:
    cloud = a_profile(options=NodeOptions(cloud_provider="external", node_ip="10.0.0.7"))
    given = NodeStatus(addresses=(NodeAddress(type="ExternalIP", address="203.0.113.1"),))
    assert status(cloud, previous=given).addresses == given.addresses
    assert [a.type for a in status(cloud).addresses] == ["InternalIP", "Hostname"]


def test_without_a_node_ip_the_cloud_provider_is_waited_for() -> None:
    cloud = a_profile(options=NodeOptions(cloud_provider="external"))
    assert [a.type for a in status(cloud).addresses] == ["Hostname"]


def test_the_cloud_provider_is_told_of_the_node_ip() -> None:
    profile = a_profile(options=NodeOptions(cloud_provider="external", node_ip="10.0.0.7,fd00::7"))
    node = updated_node(profile, seen(), a_node(), NOW)
    assert node.metadata.annotations == {"alpha.kubernetes.io/provided-node-ip": "10.0.0.7,fd00::7"}
    without = updated_node(a_profile(), seen(), node, NOW)
    assert without.metadata.annotations == {}


def test_labels_of_system_and_architecture_are_kept_right() -> None:
    labels = {"kubernetes.io/os": "windows", "mine": "kept"}
    node = updated_node(a_profile(), seen(), a_node(labels=labels), NOW)
    assert node.metadata.labels == {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "mine": "kept",
    }


def test_a_feature_is_declared_while_its_gate_is_on() -> None:
    declared = (
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    )
    assert status(a_profile()).declared_features == declared
    off = dict.fromkeys(declared[1:], False)
    assert status(a_profile(gates=off)).declared_features == declared[:1]
    silent = {
        "NodeDeclaredFeatures": False,
        "ExtendWebSocketsToKubelet": False,
        "RestartAllContainersOnContainerExits": False,
        "InPlacePodLevelResourcesVerticalScaling": False,
    }
    assert status(a_profile(gates=silent)).declared_features == ()


def test_user_namespaces_on_the_host_network_need_the_runtime() -> None:
    profile = a_profile(
        gates={
            "UserNamespacesHostNetworkSupport": True,
            "ExtendWebSocketsToKubelet": False,
            "RestartAllContainersOnContainerExits": False,
            "InPlacePodLevelResourcesVerticalScaling": False,
            "InPlacePodVerticalScalingInitContainers": False,
        }
    )
    assert status(profile).declared_features == ()
    able = seen(runtime_features=RuntimeFeatures(host_network_user_namespaces=True))
    assert status(profile, able).declared_features == ("UserNamespacesHostNetworkSupport",)


def test_only_a_heartbeat_is_no_change() -> None:
    first = updated_node(a_profile(), seen(), a_node(), NOW)
    second = updated_node(a_profile(), seen(), first, LATER)
    assert second != first
    assert not has_changed(first, second)


def test_an_image_a_condition_and_a_label_are_changes() -> None:
    first = updated_node(a_profile(), seen(), a_node(), NOW)
    image = seen(images=(ContainerImage(names=("a",), size_bytes=1),))
    assert has_changed(first, updated_node(a_profile(), image, first, LATER))
    down = seen(errors=("container runtime is down",))
    assert has_changed(first, updated_node(a_profile(), down, first, LATER))
    stripped = evolve(first, metadata=evolve(first.metadata, labels={}))
    assert has_changed(stripped, updated_node(a_profile(), seen(), stripped, LATER))


def test_the_largest_images_are_told_with_five_names_digests_first() -> None:
    images = [
        cri.Image(id="small", repo_tags=["small:1"], size=1),
        cri.Image(
            id="big", repo_tags=["t:1", "t:2", "t:3"], repo_digests=["d@1", "d@2", "d@3"], size=9
        ),
        cri.Image(id="middle", repo_tags=["m:1"], size=5),
    ]
    found = container_images(images, 2)
    assert [image.names for image in found] == [("d@1", "d@2", "d@3", "t:1", "t:2"), ("m:1",)]
    assert [image.size_bytes for image in found] == [9, 5]
    assert len(container_images(images, -1)) == 3
    assert container_images(images, 0) == ()


def test_an_image_is_never_larger_than_the_api_can_say() -> None:
    (image,) = container_images([cri.Image(size=2**64 - 1)], -1)
    assert image.size_bytes == 2**63 - 1


def test_the_runtime_is_named_with_its_version() -> None:
    version = cri.VersionResponse(runtime_name="containerd", runtime_version="v2.1.4")
    assert runtime_words(version) == "containerd://2.1.4"
