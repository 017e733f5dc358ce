"""The node's profile: its name, its addresses, and its settings and machine as one value.

`choose_addresses` decides which addresses there are; `HostNetwork` is the little that has to be
asked of the machine, and blocks (resolving a name may take seconds). The order of preference is the
Go kubelet's: --node-ip, a hostname that is an address, the node's name in DNS, the interface of the
default route; IPv4 before IPv6 unless --node-ip is `::`. Addresses that others could not reach are
refused. What changes while the agent runs is in `observer.py`.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from attrs import frozen

from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.k8s import (
    DIRECT_WEBSOCKETS,
    RESIZE_OF_INIT_CONTAINERS,
    RESIZE_OF_PODS,
    RESTART_ALL_CONTAINERS,
    USER_NAMESPACES_WITH_HOST_NETWORK,
    NodeAddress,
    NodeAddressType,
)
from trio_kubelet.node.allocatable import NodeAmounts
from trio_kubelet.node.machine import MachineInfo

EXTERNAL_CLOUD_PROVIDER = "external"

IMPLEMENTED_FEATURES: frozenset[str] = frozenset(
    {
        DIRECT_WEBSOCKETS,
        RESIZE_OF_INIT_CONTAINERS,
        RESIZE_OF_PODS,
        RESTART_ALL_CONTAINERS,
        USER_NAMESPACES_WITH_HOST_NETWORK,
    }
)
"""The features that nodes declare and this agent has.

The Go kubelet v1.36 declares ExtendWebSocketsToKubelet, InPlacePodLevelResourcesVerticalScaling,
InPlacePodVerticalScalingInitContainers, RestartAllContainersOnContainerExits and
UserNamespacesHostNetworkSupport. The scheduler brings pods here that need what is declared, and the
API server brings WebSockets, so a feature is named here when the agent has it, not before.
"""


@frozen(kw_only=True)
class NodeProfile:
    """One node: its settings, its machine, and what it has for pods."""

    name: str
    """That of the Node object (`node_name`)."""
    settings: Settings
    machine: MachineInfo
    resources: NodeAmounts
    """The amounts that there are now; they may change."""

    @property
    def configuration(self) -> KubeletConfiguration:
        """The node's KubeletConfiguration."""
        return self.settings.configuration

    @property
    def node_ips(self) -> tuple[str, ...]:
        """The addresses of --node-ip: none, one, or one of each family.

        An unspecified one only chooses the family.
        """
        return parse_node_ip(self.settings.options.node_ip)

    @property
    def has_external_cloud_provider(self) -> bool:
        return self.settings.options.cloud_provider == EXTERNAL_CLOUD_PROVIDER


def node_name(settings: Settings) -> str:
    """The node's name: --hostname-override, else the host's, in lower case."""
    name = settings.options.hostname_override or socket.gethostname()
    return name.strip().lower()


Address = IPv4Address | IPv6Address

_ROUTED = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses kept for documentation: nothing is sent there, they only ask for a route."""


class AddressError(Exception):
    """The node has no address that could be announced; the text says why."""


class HostNetwork:
    """The machine's knowledge of addresses. Blocks."""

    def resolve(self, name: str) -> Sequence[str]:
        """The addresses that a name has, none if it has none."""
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # the latter for what cannot be a name in DNS
            return ()
        return tuple(dict.fromkeys(str(each[4][0]) for each in found))

    def is_local(self, address: str) -> bool:
        """True if an interface has the address: only an own one can be bound to."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
        except OSError:
            return False
        return True

    def default_route(self, version: int) -> str | None:
        """The address that packets to the world leave from (4 or 6), if there is a way.

        Connecting a datagram socket sends nothing.
        """
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((_ROUTED[version], 9))
                return str(probe.getsockname()[0])
        except OSError:
            return None


def parse_node_ip(text: str) -> tuple[str, ...]:
    """The addresses in --node-ip, in their usual notation; what is no address is left out."""
    return tuple(str(found) for part in text.split(",") if (found := _parsed(part.strip())))


def is_unspecified(address: str) -> bool:
    """True if an address is `0.0.0.0` or `::`, which only names a family."""
    return ip_address(address).is_unspecified


def choose_addresses(name: str, node_ips: Sequence[str], network: HostNetwork) -> tuple[str, ...]:
    """The internal addresses of a node: one, or one of each family. Blocks as `network` does.

    Raises AddressError.
    """
    given = [ip_address(text) for text in node_ips]
    specified = [address for address in given if not address.is_unspecified]
    if specified:
        for address, what in zip(specified, ("nodeIP", "secondaryNodeIP"), strict=False):
            problem = address_problem(address, network)
            if problem:
                raise AddressError(f"failed to validate {what}: {problem}")
        return tuple(str(address) for address in specified)
    named = _parsed(name)
    if named is not None:
        return (str(named),)
    preferred = given[0].version if given else 4
    found = _resolved(name, preferred, network) or _routed(preferred, network)
    if found is None:
        raise AddressError(
            f"can't get ip address of node {name}: its name does not resolve to one of this "
            "machine's addresses and there is no default route; set --node-ip"
        )
    return (found,)


def address_problem(address: Address, network: HostNetwork) -> str:
    """Why others could not reach the node at an address of its own; empty if they could."""
    refusals = {
        "nodeIP can't be loopback address": address.is_loopback,
        "nodeIP can't be a multicast address": address.is_multicast,
        "nodeIP can't be a link-local unicast address": address.is_link_local,
        "nodeIP can't be an all zeros address": address.is_unspecified,
    }
    for problem, holds in refusals.items():
        if holds:
            return problem
    if network.is_local(str(address)):
        return ""
    return f'node IP: "{address}" not found in the host\'s network interfaces'


def node_addresses(internal: Sequence[str], hostname: str) -> tuple[NodeAddress, ...]:
    """`status.addresses`: the internal ones, then the name."""
    return (
        *(NodeAddress(type=NodeAddressType.INTERNAL_IP, address=each) for each in internal),
        NodeAddress(type=NodeAddressType.HOSTNAME, address=hostname),
    )


def _resolved(name: str, preferred: int, network: HostNetwork) -> str | None:
    addresses = [found for text in network.resolve(name) if (found := _parsed(text))]
    usable = [address for address in addresses if not address_problem(address, network)]
    usable.sort(key=lambda address: address.version != preferred)
    return str(usable[0]) if usable else None


def _routed(preferred: int, network: HostNetwork) -> str | None:
    other = 10 - preferred
    return network.default_route(preferred) or network.default_route(other)


def _parsed(text: str) -> Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
