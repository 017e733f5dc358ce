"""What the node has for pods, as it is now."""

from typing import Any

from tests.unit.node.nodes import GIB, a_machine
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.k8s import Container, Pod, PodSpec, Quantity, ResourceRequirements
from trio_kubelet.node.allocatable import Reservations
from trio_kubelet.node.resources import NodeResources, node_resources


def resources(**configuration: Any) -> NodeResources:
    settings = Settings(
        configuration=KubeletConfiguration(**{"eviction_hard": {}, **configuration}),
        options=NodeOptions(),
    )
    return node_resources(settings, a_machine())


def test_pods_may_have_what_is_not_reserved() -> None:
    found = resources(kube_reserved={"memory": "1Gi"})
    assert found.amounts().capacity["memory"] == Quantity("8Gi")
    assert found.allocatable()["memory"] == Quantity("7Gi")


def test_a_node_that_reserves_more_than_it_has_is_refused_with_the_numbers() -> None:
    assert resources().problem() == ""
    assert resources(kube_reserved={"memory": "10Gi"}).problem() == (
        'invalid Node Allocatable configuration. Resource "memory" has a reservation of '
        "10Gi but capacity of 8Gi. Expected capacity >= reservation."
    )


def test_a_pod_may_use_its_limit_of_memory_or_what_there_is_for_pods() -> None:
    found = resources(kube_reserved={"memory": "1Gi"})
    limited = ResourceRequirements(limits={"memory": Quantity("2Gi")})
    pod = Pod(spec=PodSpec(containers=(Container(name="c", resources=limited),)))
    assert found.memory_for(pod) == 2 * GIB
    assert found.memory_for(Pod(spec=PodSpec(containers=(Container(name="c"),)))) == 7 * GIB


def test_other_reservations_leave_what_device_plugins_offer() -> None:
    found = resources()
    found.set_devices({"vendor.example/d": 2}, {"vendor.example/d": 1})
    found.set_reservations(Reservations(kube={"memory": Quantity("1Gi")}))
    assert found.allocatable()["memory"] == Quantity("7Gi")
    assert found.allocatable()["vendor.example/d"] == Quantity(1)
