"""Which addresses a node announces."""

from collections.abc import Sequence

import pytest
from attrs import field, frozen

from trio_kubelet.node.profile import (
    AddressError,
    HostNetwork,
    choose_addresses,
    node_addresses,
    parse_node_ip,
)


@frozen(kw_only=True)
class FakeNetwork(HostNetwork):
    """A machine with these addresses, in a world where its name has those."""

    local: tuple[str, ...] = ("10.0.0.7", "10.0.0.8", "fd00::7")
    names: tuple[str, ...] = ()
    routes: dict[int, str] = field(factory=dict)

    def resolve(self, name: str) -> Sequence[str]:
        return self.names

    def is_local(self, address: str) -> bool:
        return address in self.local

    def default_route(self, version: int) -> str | None:
        return self.routes.get(version)


BOTH_ROUTES = {4: "10.0.0.7", 6: "fd00::7"}


@pytest.mark.parametrize(
    ("node_ip", "network", "expected"),
    [
        ("10.0.0.8", FakeNetwork(routes=BOTH_ROUTES), ("10.0.0.8",)),
        ("10.0.0.8, fd00::7", FakeNetwork(), ("10.0.0.8", "fd00::7")),
        ("fd00::7,10.0.0.8", FakeNetwork(), ("fd00::7", "10.0.0.8")),
        ("", FakeNetwork(names=("10.0.0.8",), routes=BOTH_ROUTES), ("10.0.0.8",)),
        ("", FakeNetwork(names=("fd00::7", "10.0.0.8")), ("10.0.0.8",)),
        ("", FakeNetwork(names=("fd00::7",), routes=BOTH_ROUTES), ("fd00::7",)),
        ("", FakeNetwork(names=("127.0.1.1",), routes=BOTH_ROUTES), ("10.0.0.7",)),
        ("", FakeNetwork(names=("10.9.9.9",), routes=BOTH_ROUTES), ("10.0.0.7",)),
        ("", FakeNetwork(routes={6: "fd00::7"}), ("fd00::7",)),
        ("0.0.0.0", FakeNetwork(routes=BOTH_ROUTES), ("10.0.0.7",)),
        ("::", FakeNetwork(routes=BOTH_ROUTES), ("fd00::7",)),
        ("::", FakeNetwork(names=("10.0.0.8", "fd00::7")), ("fd00::7",)),
    ],
)
def test_the_node_ip_comes_first_then_the_name_then_the_default_route(
    node_ip: str, network: FakeNetwork, expected: tuple[str, ...]
) -> None:
    assert choose_addresses("node-1", parse_node_ip(node_ip), network) == expected


def test_a_name_that_is_an_address_is_the_address() -> None:
    assert choose_addresses("10.1.2.3", (), FakeNetwork()) == ("10.1.2.3",)


@pytest.mark.parametrize(
    ("node_ip", "why"),
    [
        ("127.0.0.1", "nodeIP can't be loopback address"),
        ("224.0.0.1", "nodeIP can't be a multicast address"),
        ("fe80::1", "nodeIP can't be a link-local unicast address"),
        ("10.9.9.9", 'node IP: "10.9.9.9" not found in the host\'s network interfaces'),
    ],
)
def test_an_address_that_others_cannot_reach_is_refused(node_ip: str, why: str) -> None:
    with pytest.raises(AddressError) as raised:
        choose_addresses("node-1", (node_ip,), FakeNetwork())
    assert str(raised.value) == f"failed to validate nodeIP: {why}"


def test_the_second_address_is_checked_too() -> None:
    with pytest.raises(AddressError, match="failed to validate secondaryNodeIP"):
        choose_addresses("node-1", ("10.0.0.8", "fd00::99"), FakeNetwork())


def test_a_node_that_nobody_can_find_says_what_to_do() -> None:
    with pytest.raises(AddressError, match="set --node-ip"):
        choose_addresses("node-1", (), FakeNetwork())


def test_what_is_no_address_is_left_out() -> None:
    assert parse_node_ip("10.0.0.7,nonsense") == ("10.0.0.7",)
    assert parse_node_ip("") == ()


def test_internal_addresses_come_before_the_name() -> None:
    assert [(a.type, a.address) for a in node_addresses(("10.0.0.7", "fd00::7"), "node-1")] == [
        ("InternalIP", "10.0.0.7"),
        ("InternalIP", "fd00::7"),
        ("Hostname", "node-1"),
    ]


def test_a_machine_knows_which_addresses_are_its_own() -> None:
    network = HostNetwork()
    assert network.is_local("127.0.0.1")
    assert not network.is_local("192.0.2.1")


def test_a_name_that_cannot_be_one_has_no_addresses() -> None:
    assert HostNetwork().resolve(f"{'x' * 64}.example.com") == ()
