"""What the settings make of a machine."""

from datetime import timedelta
from typing import Any

import pytest

from tests.unit.node.nodes import a_machine
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.parts import RegistrationTaint
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Quantity, Taint
from trio_kubelet.node.profile import NodeProfile, node_name, node_profile
from trio_kubelet.node.resources import node_resources


def profile(options: NodeOptions | None = None, **configuration: Any) -> NodeProfile:
    settings = Settings(
        configuration=KubeletConfiguration(**configuration),
        options=options or NodeOptions(hostname_override="node-1"),
    )
    machine = a_machine()
    return node_profile(settings, machine, node_resources(settings, machine).amounts())


def test_without_settings_it_is_what_a_kubelet_is_by_default() -> None:
    found = profile()
    assert found.name == "node-1"
    assert found.kubelet_version == "v1.36.3"
    assert found.resources.capacity["pods"] == Quantity(110)
    assert (found.update_seconds, found.report_seconds) == (10, 300)
    assert found.max_images == 50
    assert found.register_node
    assert found.controller_attaches_volumes
    assert not found.external_cloud_provider


def test_flags_and_fields_are_taken_over() -> None:
    options = NodeOptions(
        hostname_override="Node-2 ",
        node_ip="10.0.0.7,fd00::7",
        node_labels={"tier": "db"},
        cloud_provider="external",
        version="v1.35.0",
    )
    found = profile(
        options,
        port=10251,
        max_pods=30,
        provider_id="example://7",
        register_node=False,
        register_with_taints=(RegistrationTaint(key="dedicated", value="db", effect="NoSchedule"),),
        enable_controller_attach_detach=False,
        node_status_update_frequency=timedelta(seconds=5),
    )
    assert found.name == "node-2"
    assert found.node_ips == ("10.0.0.7", "fd00::7")
    assert found.labels == {"tier": "db"}
    assert found.external_cloud_provider
    assert found.kubelet_version == "v1.35.0"
    assert found.kubelet_port == 10251
    assert found.resources.capacity["pods"] == Quantity(30)
    assert found.provider_id == "example://7"
    assert not found.register_node
    assert found.taints == (Taint(key="dedicated", value="db", effect="NoSchedule"),)
    assert not found.controller_attaches_volumes
    assert found.update_seconds == 5


@pytest.mark.parametrize(
    ("given", "name"), [("Web-1", "web-1"), (" a.example.com\n", "a.example.com")]
)
def test_names_are_lower_case(given: str, name: str) -> None:
    assert node_name(Settings(options=NodeOptions(hostname_override=given))) == name


def test_a_server_that_is_switched_off_has_no_port() -> None:
    assert profile(enable_server=False, port=10251).kubelet_port == 0
