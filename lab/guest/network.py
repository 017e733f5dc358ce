"""A network between guests, and to the host: a bridge in a network namespace of its own.

Each guest has a link to the bridge, and so has the host, under a name and with an address that
nobody uses there. No setting of the host changes, so guests reach the host and no further. All of
it is gone with the process that keeps the namespace.
"""

import ipaddress
import itertools
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lab import LabError, tools
from lab.network import free_subnet
from lab.orphans import marked
from lab.packages import Packages
from lab.processes import last_words, run
from lab.started import Started

POOL = ipaddress.IPv4Network("10.214.0.0/16")
BRIDGE = "guests"
END_DEADLINE_SECONDS = 10

# Arguments: busybox, the host's process, the name of its link.
BECOME = f"""
busybox=$1
"$busybox" ip link set lo up
"$busybox" ip link add {BRIDGE} type bridge
"$busybox" ip link set {BRIDGE} up
"$busybox" ip link add type veth
"$busybox" ip link set veth1 name "$3"
"$busybox" ip link set veth0 name host
"$busybox" ip link set host master {BRIDGE}
"$busybox" ip link set host up
"$busybox" ip link set "$3" netns "$2"
echo ready
read nothing
"""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Link:
    """A guest's place in the network, with the prefix's length; the gateway is the host."""

    interface: str
    address: str
    gateway: str
    mac: str


class GuestNetwork(Started):
    """One network; a context manager. Guests are given it before they start."""

    def __init__(self, packages: Packages | None = None) -> None:
        self._packages = packages or Packages()
        self._subnet: ipaddress.IPv4Network | None = None
        self._links: dict[str, Link] = {}
        self.host_interface = f"guests{next(_numbers)}-{os.getpid()}"
        self._making = threading.Lock()
        self._keeper: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process whose network namespace it is."""
        assert self._keeper is not None, "not started"
        return self._keeper.pid

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        """The addresses of guests and host."""
        assert self._subnet is not None, "not started"
        return self._subnet

    @property
    def host_address(self) -> str:
        """Where guests reach the host."""
        return str(self.subnet[1])

    def start(self) -> None:
        """Make the bridge and the host's link to it."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        busybox = tools.busybox(self._packages)
        name = self.host_interface
        self._keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-e", "-c", BECOME, "sh", busybox, str(os.getpid()), name],
            env=marked(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline().strip() != "ready":
            raise LabError(f"no network for guests: {last_words(self._keeper.stderr.read())}")
        with self._packages.locked():  # Or two networks would choose the same addresses.
            self._subnet = ipaddress.IPv4Network(free_subnet((), POOL))
            host_address = f"{self.host_address}/{self._subnet.prefixlen}"
            run([busybox, "ip", "address", "add", host_address, "dev", name])
            run([busybox, "ip", "link", "set", name, "up"])

    def stop(self) -> None:
        """Remove bridge and links. Safe to repeat."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.kill()
            keeper.communicate(timeout=END_DEADLINE_SECONDS)
        self._links.clear()

    def link(self, name: str) -> Link:
        """Return the link of the guest `name`, which is made when it is first asked for."""
        with self._making:
            if name not in self._links:
                number = len(self._links) + 2
                link = Link(
                    interface=f"guest{number}",
                    address=f"{self.subnet[number]}/{self.subnet.prefixlen}",
                    gateway=self.host_address,
                    mac=f"02:00:00:00:00:{number:02x}",
                )
                self._make(link)
                self._links[name] = link
            return self._links[name]

    @contextmanager
    def disconnected(self, name: str) -> Iterator[None]:
        """Until the end of the block, no packet reaches that guest or leaves it.

        Nobody is told: for the guest its interface is up.
        """
        port = _port(self._links[name])
        self._ip_link("set", port, "nomaster")
        try:
            yield
        finally:
            self._ip_link("set", port, "master", BRIDGE)

    def _make(self, link: Link) -> None:
        port = _port(link)
        for words in (
            "add type veth",
            f"set veth0 name {port}",
            f"set veth1 name {link.interface}",
            f"set {port} master {BRIDGE}",
            f"set {port} up",
            f"set {link.interface} up",
        ):
            self._ip_link(*words.split())

    def _ip_link(self, *words: str) -> None:
        enter = ("nsenter", f"--target={self.pid}", "--net", "--")
        run([*enter, tools.busybox(self._packages), "ip", "link", *words])


def _port(link: Link) -> str:
    """The bridge's end of a link."""
    return link.interface.replace("guest", "port")
