"""What the node has for pods, as it is now."""

from typing import Any

from tests.unit.node.nodes import GIB, a_machine
from trio_kubelet.config import KubeletConfiguration, NodeOptions, Settings
from trio_kubelet.k8s import Quantity
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
    assert found.pods_limits(("pods",), None).memory_limit_bytes == 7 * GIB


def test_a_node_that_reserves_more_than_it_has_is_refused_with_the_numbers() -> None:
    assert resources().problem() == ""
    assert resources(kube_reserved={"memory": "10Gi"}).problem() == (
        'invalid Node Allocatable configuration. Resource "memory" has a reservation of '
        "10Gi but capacity of 8Gi. Expected capacity >= reservation."
    )


def test_devices_and_reservations_that_change_are_told_of_and_count_at_once() -> None:
    found = resources()
    seen: list[tuple[str, str]] = []
    found.on_change.add(
        lambda: seen.append(
            (
                found.allocatable()["memory"].canonical,
                found.allocatable()["example.com/gpu"].canonical,
            )
        )
    )
    found.set_devices("example.com/gpu", capacity=Quantity(4), allocatable=Quantity(3))
    assert found.amounts().capacity["example.com/gpu"] == Quantity(4)
    found.reserve(Reservations(system={"memory": Quantity("2Gi")}))
    found.set_devices("example.com/gpu", capacity=Quantity(4), allocatable=Quantity(0))
    assert seen == [("8Gi", "3"), ("6Gi", "3"), ("6Gi", "0")]
    assert found.pods_limits(("pods",), None).memory_limit_bytes == 6 * GIB
