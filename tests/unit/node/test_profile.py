"""What the settings make of a machine's name and addresses."""

import pytest

from tests.unit.node.nodes import a_profile
from trio_kubelet.config import Settings
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.node.profile import node_name


@pytest.mark.parametrize(
    ("given", "name"), [("Web-1", "web-1"), (" a.example.com\n", "a.example.com")]
)
def test_names_are_lower_case(given: str, name: str) -> None:
    assert node_name(Settings(options=NodeOptions(hostname_override=given))) == name


def test_there_is_a_cloud_provider_beside_the_node_where_the_flag_says_external() -> None:
    assert not a_profile().has_external_cloud_provider
    options = NodeOptions(cloud_provider="external", node_ip="10.0.0.7,fd00::7")
    assert a_profile(options=options).has_external_cloud_provider
    assert a_profile(options=options).node_ips == ("10.0.0.7", "fd00::7")
