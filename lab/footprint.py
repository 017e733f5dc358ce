"""What CNI plugins and containerd change on a host for everybody, and putting it back.

The bridge plugin turns IP forwarding on, the portmap plugin makes chains that all networks share,
and some folders are built into the programs. The first instance on a host writes down what was
there before; the last one to end puts it back, as far as nobody else can have come to need it.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import LabError
from lab.processes import run

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
INTERFACES = Path("/sys/class/net")
# libcni remembers here what it set up, and shims listen here, whatever the configuration says.
CNI_RESULTS = Path("/var/lib/cni/results")
SHIM_SOCKETS = Path("/run/containerd/s")
SHARED_FOLDERS = (CNI_RESULTS, CNI_RESULTS.parent, SHIM_SOCKETS, SHIM_SOCKETS.parent)
# The first of them holds a rule for each container with a host port.
HOST_PORT_CHAINS = ("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK")


@dataclass(frozen=True, slots=True)
class Footprint:
    """A host before the first instance: forwarding `0` or `1`, and names of what was there."""

    forwarding: str
    interfaces: tuple[str, ...]
    folders: tuple[str, ...]
    chains: tuple[str, ...]

    def text(self) -> str:
        """Return it as JSON, for `parse`."""
        return json.dumps(asdict(self))


def parse(text: str) -> Footprint:
    """Read what `text` wrote."""
    fields = json.loads(text)
    lists = ("interfaces", "folders", "chains")
    return Footprint(**{**fields, **{name: tuple(fields[name]) for name in lists}})


def take(iptables: Path | None) -> Footprint:
    """Look at the host as it is now."""
    return Footprint(
        forwarding=FORWARDING.read_text().strip(),
        interfaces=_interfaces(),
        folders=tuple(str(folder) for folder in SHARED_FOLDERS if folder.is_dir()),
        chains=_chains(_nat_rules(iptables)),
    )


def put_back(before: Footprint, iptables: Path | None) -> None:
    """Undo what is not in use by others.

    Forwarding stays on if a network interface has come that was not there before: it may be a
    bridge or a tunnel of somebody who relies on it.
    """
    if before.forwarding == "0" and set(_interfaces()) <= set(before.interfaces):
        FORWARDING.write_text("0")
    if iptables is not None:
        for words in chain_removals(_nat_rules(iptables), before.chains):
            with suppress(LabError):
                run([iptables, "--wait", "-t", "nat", *words])
    for folder in SHARED_FOLDERS:
        if str(folder) not in before.folders:
            with suppress(OSError):
                folder.rmdir()


def chain_removals(saved: str, keep: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """List the iptables commands that remove the portmap plugin's shared chains.

    None if a container of another network has a host port, or if they were there before (`keep`).
    """
    lines = saved.splitlines()
    present = [chain for chain in HOST_PORT_CHAINS if chain in _chains(saved)]
    in_use = any(line.startswith(f"-A {HOST_PORT_CHAINS[0]} ") for line in lines)
    if in_use or set(present) & set(keep):
        return ()
    jumps = [line for line in lines if re.search(r" -j CNI-HOSTPORT-\w+$", line)]
    return (
        *(("-D", *_plain_words(line)) for line in jumps),
        *(("-F", chain) for chain in present),
        *(("-X", chain) for chain in present),
    )


def _plain_words(line: str) -> tuple[str, ...]:
    """Split a saved rule without its `-A`; quoted comments are one word."""
    found = re.findall(r'"([^"]*)"|(\S+)', line)
    return tuple(quoted or plain for quoted, plain in found)[1:]


def _chains(saved: str) -> tuple[str, ...]:
    return tuple(re.findall(r"^:(\S+)", saved, re.MULTILINE))


def _nat_rules(iptables: Path | None) -> str:
    if iptables is None:
        return ""
    try:
        return run([iptables.with_name("iptables-save"), "-t", "nat"])
    except LabError:
        return ""


def _interfaces() -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in INTERFACES.iterdir()))
