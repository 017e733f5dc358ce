"""At which address the node asks the containers of a pod."""

import pytest

from tests.node_facts import configured, node_facts
from trio_kubelet.k8s import Pod, PodSpec


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
    node = node_facts(host_ips=host_ips)
    assert node.address_of(Pod(spec=PodSpec(host_network=host_network)), ips) == expected


def test_links_to_logs_of_containers_are_where_all_look_for_them_unless_the_logs_are_moved() -> (
    None
):
    assert node_facts().container_logs_directory == "/var/log/containers"
    moved = configured(node_facts(), pod_logs_dir="/srv/logs/pods")
    assert moved.container_logs_directory == "/srv/logs/containers"
