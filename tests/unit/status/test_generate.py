"""The rest of a pod's status: addresses, start time, QoS class, resources, what is others'."""

import pytest

from tests.unit.status.pods import (
    NOTHING,
    NOW,
    RUNNING,
    SECOND,
    a_pod,
    instance,
    sandbox,
    seen,
    status_of,
)
from trio_kubelet.k8s import (
    Container,
    HostIP,
    PodIP,
    PodResourceClaimStatus,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Time,
)
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.status import NodeIdentity

DUAL = NodeIdentity(host_ips=("10.0.0.1", "fd00::1"))
SIX_FIRST = NodeIdentity(host_ips=("fd00::1", "10.0.0.1"))


@pytest.mark.parametrize(
    ("node", "seen_ips", "shown"),
    [
        (DUAL, ("10.1.0.2",), ("10.1.0.2",)),
        (DUAL, ("fd01::2", "10.1.0.2"), ("10.1.0.2", "fd01::2")),
        (SIX_FIRST, ("10.1.0.2", "fd01::2"), ("fd01::2", "10.1.0.2")),
        (NodeIdentity(), ("fd01::2", "10.1.0.2"), ("10.1.0.2", "fd01::2")),
        (DUAL, ("10.1.0.2", "10.1.0.3", "FD01:0::2"), ("10.1.0.2", "fd01::2")),
        (DUAL, ("not an address",), ()),
    ],
)
def test_a_pod_shows_one_address_of_each_family_the_nodes_own_first(
    node: NodeIdentity, seen_ips: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    status = status_of(a_pod(), seen(sandboxes=(sandbox(ips=seen_ips),)), node=node)
    assert tuple(entry.ip for entry in status.pod_ips) == shown
    assert status.pod_ip == (shown[0] if shown else "")


def test_a_pod_keeps_its_addresses_when_its_sandbox_is_gone() -> None:
    before = status_of(a_pod(), seen())
    after = status_of(a_pod(), NOTHING, previous=before)
    assert (after.pod_ip, after.pod_ips) == ("10.1.0.2", (PodIP(ip="10.1.0.2"),))


def test_on_the_hosts_network_a_pod_has_the_hosts_addresses() -> None:
    status = status_of(a_pod(host_network=True), NOTHING, node=DUAL)
    assert status.pod_ips == (PodIP(ip="10.0.0.1"), PodIP(ip="fd00::1"))
    assert status.host_ip == "10.0.0.1"
    assert status.host_ips == (HostIP(ip="10.0.0.1"), HostIP(ip="fd00::1"))


def test_a_node_without_known_addresses_shows_none() -> None:
    status = status_of(a_pod(), NOTHING, node=NodeIdentity())
    assert (status.host_ip, status.host_ips) == ("", ())


def test_the_start_time_is_that_of_the_first_status() -> None:
    first = status_of(a_pod(), NOTHING)
    later = status_of(a_pod(), seen(), previous=first, now_ns=NOW + 60 * SECOND)
    assert later.start_time == first.start_time == Time.from_ns(NOW)


def test_the_start_time_of_a_pod_that_the_agent_has_forgotten_is_that_of_its_sandbox() -> None:
    old = sandbox(created_at=NOW - 3600 * SECOND)
    assert status_of(a_pod(), seen(sandboxes=(old,))).start_time == Time.from_ns(
        NOW - 3600 * SECOND
    )
    future = sandbox(created_at=NOW + 3600 * SECOND)
    assert status_of(a_pod(), seen(sandboxes=(future,))).start_time == Time.from_ns(NOW)


def test_qos_class_and_resources_follow_from_the_spec() -> None:
    amounts = {"cpu": Quantity("1"), "memory": Quantity("1Gi")}
    resources = ResourceRequirements(requests=amounts, limits=amounts)
    status = status_of(a_pod(containers=(Container(name="c", resources=resources),)))
    assert status.qos_class == "Guaranteed"
    assert status.allocated_resources == amounts
    assert status.resources == resources
    assert status_of(a_pod()).qos_class == "BestEffort"


def test_what_others_set_is_left_alone() -> None:
    theirs = PodStatus(
        nominated_node_name="elsewhere",
        resource_claim_statuses=(PodResourceClaimStatus(name="gpu", resource_claim_name="gpu-1"),),
    )
    status = status_of(a_pod(status=theirs), seen(instance("c", RUNNING)))
    assert status.nominated_node_name == "elsewhere"
    assert status.resource_claim_statuses == theirs.resource_claim_statuses


def test_a_static_pod_has_no_generation_to_observe() -> None:
    assert status_of(a_pod()).observed_generation is None


def test_the_status_says_the_same_on_the_wire() -> None:
    status = status_of(a_pod(generation=3), seen(instance("c", RUNNING, 1)))
    data = encode(status)
    assert decode(PodStatus, data) == status
    assert data["containerStatuses"][0]["containerID"] == "containerd://c-1"
    assert data["phase"] == "Running"


def test_containers_are_shown_by_name_and_init_containers_in_their_turn() -> None:
    pod = a_pod("web", "db", init=(Container(name="second"), Container(name="first")))
    status = status_of(pod)
    assert [each.name for each in status.container_statuses] == ["db", "web"]
    assert [each.name for each in status.init_container_statuses] == ["second", "first"]


def test_an_image_with_a_name_that_is_too_long_is_shown_in_part() -> None:
    container = Container(name="c", image="a" * 4097)
    (status,) = status_of(a_pod(containers=(container,)), NOTHING).container_statuses
    assert status.image == "a" * 128 + "..."
