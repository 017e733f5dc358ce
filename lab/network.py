"""The network of one private runtime: its own bridge, its own subnet, nothing left behind.

Every instance has a name; bridge, CNI network and iptables comments carry it, so that two
instances on a host cannot collide and what one left behind can be told from everything else. The
subnet is one that no route of the host reaches. Addresses are kept below the instance's folder.
"""

import ipaddress
import json
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import LabError
from lab.processes import run

POOL = ipaddress.IPv4Network("10.213.0.0/16")

# From linux/rtnetlink.h and linux/if_link.h.
NLMSG_ERROR = 2
RTM_DELLINK = 17
NLM_F_REQUEST_ACK = 0x1 | 0x4
IFLA_IFNAME = 3
ENODEV = 19


@dataclass(frozen=True, slots=True)
class LabNetwork:
    """Names and addresses; `name` is the CNI network, `bridge` at most 15 characters long."""

    name: str
    bridge: str
    subnet: str
    addresses: Path

    def cni_configuration(self, *, masquerade: bool) -> str:
        """Return the conflist for containerd: a bridge with host-local addresses, and host ports.

        `masquerade` and host ports need iptables; without it both are left out.
        """
        bridge = {
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": True,
            "ipMasq": masquerade,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": self.subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": str(self.addresses),
            },
        }
        host_ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
        plugins = [bridge, host_ports] if masquerade else [bridge]
        return json.dumps({"cniVersion": "0.4.0", "name": self.name, "plugins": plugins}, indent=2)


def free_subnet(taken: Iterable[str], pool: ipaddress.IPv4Network = POOL) -> str:
    """Pick the first /24 of the pool that neither `taken` nor a route of the host overlaps."""
    occupied = [*map(ipaddress.IPv4Network, taken), *_routes(Path("/proc/net/route").read_text())]
    for subnet in pool.subnets(new_prefix=24):
        if not any(subnet.overlaps(other) for other in occupied):
            return str(subnet)
    raise LabError(f"no free subnet left in {pool}")


def _routes(table: str) -> Iterator[ipaddress.IPv4Network]:
    """Destinations in /proc/net/route (hexadecimal, in the host's byte order), no default route."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        address, mask = (
            struct.unpack(">I", struct.pack("=I", int(fields[index], 16)))[0] for index in (1, 7)
        )
        if mask:
            yield ipaddress.IPv4Network((address, mask.bit_count()))


def remove(network: LabNetwork, iptables: Path | None) -> None:
    """Delete the bridge and the iptables rules of the network, if there are any."""
    delete_link(network.bridge)
    if iptables is not None:
        remove_rules(network.name, iptables)


def delete_link(name: str) -> None:
    """Delete a network interface; one that does not exist is fine."""
    label = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(label), IFLA_IFNAME) + label
    attribute += b"\0" * (-len(attribute) % 4)
    link = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)
    length = 16 + len(link) + len(attribute)
    header = struct.pack("=IHHII", length, RTM_DELLINK, NLM_F_REQUEST_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(10)
        netlink.send(header + link + attribute)
        answer = netlink.recv(4096)
    kind, error = struct.unpack_from("=4xH10xi", answer)
    if kind == NLMSG_ERROR and error not in (0, -ENODEV):
        raise LabError(f"cannot delete the network interface {name}: error {-error}")


def remove_rules(name: str, iptables: Path) -> None:
    """Delete the NAT rules that carry the network's name, and the chains made for them."""
    saved = run([iptables.with_name("iptables-save"), "-t", "nat"])
    for words in removals(name, saved):
        run([iptables, "--wait", "-t", "nat", *words])


def removals(name: str, saved: str) -> tuple[tuple[str, ...], ...]:
    """List the iptables commands that undo the rules of one CNI network in `iptables-save`.

    CNI marks each rule with the comment `name: "NETWORK" id: "CONTAINER"` (masquerading) or
    `dnat name: "NETWORK" id: "CONTAINER"` (host ports), and gives each container chains of its own
    to jump to. The chains that all networks share stay.
    """
    mark = re.compile(rf'name: \\?"{re.escape(name)}\\?" id: ')
    marked = [line for line in saved.splitlines() if line.startswith("-A ") and mark.search(line)]
    jumps = (re.search(r" -j (CNI-\S+)", line) for line in marked)
    chains = dict.fromkeys(
        found[1] for found in jumps if found and re.fullmatch(r"CNI-(DN-)?[0-9a-f]+", found[1])
    )
    rules = [words for line in marked if (words := _words(line))[1] not in chains]
    return (
        *(("-D", *words[1:]) for words in rules),
        *(("-F", chain) for chain in chains),
        *(("-X", chain) for chain in chains),
    )


def _words(line: str) -> tuple[str, ...]:
    """Split a saved rule into arguments; a quoted one may hold escaped quotes."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    return tuple(re.sub(r"\\(.)", r"\1", quoted) if quoted else plain for quoted, plain in found)
