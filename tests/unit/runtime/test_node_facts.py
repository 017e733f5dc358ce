"""At which address the node asks the containers of a pod."""

import pytest

from trio_kubelet.k8s import Pod, PodSpec
from trio_kubelet.runtime.node_facts import NodeFacts


@pytest.mark.parametrize(
    ("host_network", "host_ips", "ips", "expected"),
    [
        (False, ("10.0.0.1",), ("10.1.0.7",), "10.1.0.7"),
        (False, ("10.0.0.1",), ("fd00::7", "10.1.0.7"), "10.1.0.7"),
        (False, ("fd00::1", "10.0.0.1"), ("10.1.0.7", "fd00::7"), "fd00::7"),
        (True, ("10.0.0.1",), (), "10.0.0.1"),
        (False, ("10.0.0.1",), (), ""),
        (True, (), (), ""),
    ],
)
def test_a_pod_is_asked_at_its_address_of_the_family_of_the_node(
    host_network: bool, host_ips: tuple[str, ...], ips: tuple[str, ...], expected: str
) -> None:
    node = NodeFacts(memory_capacity_bytes=1, host_ips=host_ips)
    assert node.address_of(Pod(spec=PodSpec(host_network=host_network)), ips) == expected
