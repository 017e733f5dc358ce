import ipaddress
import json
import shlex
from pathlib import Path

import pytest

from lab import LabError, network
from lab.footprint import chain_removals
from lab.network import LabNetwork, free_subnet, removals

RULES = """\
*nat
:PREROUTING ACCEPT [0:0]
:CNI-0123456789abcdef01234567 - [0:0]
:CNI-DN-aaaaaaaaaaaaaaaaaaaaa - [0:0]
:CNI-fedcba9876543210fedcba98 - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A POSTROUTING -s 10.213.0.2/32 -m comment --comment "name: \\"mine\\" id: \\"c1\\"" \
-j CNI-0123456789abcdef01234567
-A POSTROUTING -s 10.88.0.2/32 -m comment --comment "name: \\"theirs\\" id: \\"c2\\"" \
-j CNI-fedcba9876543210fedcba98
-A CNI-0123456789abcdef01234567 -d 10.213.0.0/24 -m comment \
--comment "name: \\"mine\\" id: \\"c1\\"" -j ACCEPT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"mine\\" id: \\"c1\\"" \
-m multiport --dports 8080 -j CNI-DN-aaaaaaaaaaaaaaaaaaaaa
-A CNI-DN-aaaaaaaaaaaaaaaaaaaaa -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.213.0.2:80
COMMIT
"""
NO_HOST_PORTS = """\
*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
"""


def test_only_the_rules_and_chains_of_the_own_network_are_removed() -> None:
    masquerade, host_port, *chains = map(shlex.join, removals("mine", RULES))
    assert masquerade == (
        "-D POSTROUTING -s 10.213.0.2/32 -m comment --comment "
        """'name: "mine" id: "c1"' -j CNI-0123456789abcdef01234567"""
    )
    assert host_port == (
        """-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment 'dnat name: "mine" id: "c1"' """
        "-m multiport --dports 8080 -j CNI-DN-aaaaaaaaaaaaaaaaaaaaa"
    )
    assert chains == [
        "-F CNI-0123456789abcdef01234567",
        "-F CNI-DN-aaaaaaaaaaaaaaaaaaaaa",
        "-X CNI-0123456789abcdef01234567",
        "-X CNI-DN-aaaaaaaaaaaaaaaaaaaaa",
    ]


def test_a_network_whose_name_begins_like_another_leaves_it_alone() -> None:
    assert removals("min", RULES) == ()


def test_shared_chains_go_when_no_container_has_a_host_port() -> None:
    assert list(map(shlex.join, chain_removals(NO_HOST_PORTS, keep=()))) == [
        "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
        "-D POSTROUTING -m comment --comment 'CNI portfwd requiring masquerade' "
        "-j CNI-HOSTPORT-MASQ",
        "-F CNI-HOSTPORT-DNAT",
        "-F CNI-HOSTPORT-MASQ",
        "-X CNI-HOSTPORT-DNAT",
        "-X CNI-HOSTPORT-MASQ",
    ]


def test_shared_chains_stay_for_a_container_with_a_host_port() -> None:
    assert chain_removals(RULES, keep=()) == ()


def test_shared_chains_stay_that_were_there_before() -> None:
    assert chain_removals(NO_HOST_PORTS, keep=("CNI-HOSTPORT-DNAT",)) == ()


def test_a_subnet_is_chosen_that_no_other_instance_and_no_route_has() -> None:
    chosen = ipaddress.IPv4Network(free_subnet(["10.213.0.0/24", "10.213.1.0/24"]))
    assert chosen.subnet_of(network.POOL)
    assert str(chosen) not in ("10.213.0.0/24", "10.213.1.0/24")


def test_a_full_pool_is_an_error() -> None:
    with pytest.raises(LabError, match="no free subnet"):
        free_subnet(["10.213.0.0/16"])


def test_without_iptables_there_is_neither_masquerading_nor_a_host_port() -> None:
    made = LabNetwork("n", "b", "10.213.0.0/24", Path("/addresses"))
    with_iptables = json.loads(made.cni_configuration(masquerade=True))["plugins"]
    without = json.loads(made.cni_configuration(masquerade=False))["plugins"]
    assert [plugin["type"] for plugin in with_iptables] == ["bridge", "portmap"]
    assert [plugin["type"] for plugin in without] == ["bridge"]
    assert without[0]["ipMasq"] is False
