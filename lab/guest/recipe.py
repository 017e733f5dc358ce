"""What a guest's image is made from: a Debian node with containerd, and what tests need there.

The digest of it all is the image's name in the cache. Files of the root folder are in `root/`.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lab import debian_root, images, root_folder

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
FILES = HERE / "root"
OWN_KERNEL_OPTIONS = HERE / "own_kernel.options"

SUITE = "trixie"
# User-mode Linux is three times as fast since 6.16, which needs no ptrace.
KERNEL_SUITE = "forky"
PACKAGES = (
    *("systemd-sysv", "dbus", "udev", "kmod", "python3", "python3-venv", "busybox-static"),
    *("containerd", "runc", "crun", "containernetworking-plugins", "catatonit"),
    *("iptables", "nftables", "conntrack", "iproute2", "ethtool", "procps", "psmisc", "e2fsprogs"),
    *("quota", "apparmor", "ca-certificates", "netcat-openbsd", "strace"),
    *("open-iscsi", "nfs-common", "nfs-ganesha", "nfs-ganesha-vfs"),
)
# What a node that lives for minutes does not need, or what works on no such machine.
MASKED_UNITS = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "getty@tty1.service", "modprobe@.service"),
    *("systemd-timesyncd.service", "systemd-udev-trigger.service", "apparmor.service"),
    *("systemd-binfmt.service", "quota.service", "quotarpc.service"),
    *("open-iscsi.service", "nfs-ganesha.service", "nfs-ganesha-lock.service", "nfs-client.target"),
    *("rpcbind.service", "rpcbind.socket", "nfs-blkmap.service"),
)
ENABLED_UNITS = ("guest-commands.service", "guest-network.service")
# Of the packaged kernel; in a kernel of our own they are built in.
MODULES = ("overlay", "br_netfilter", "veth", "loop", "dummy")
DISK_SIZE = "12G"


class Kernel(StrEnum):
    """Debian's package, or one from Debian's source with `own_kernel.options`.

    The first lacks cpusets, PSI and address translation (so no host ports); the second takes
    minutes to build, once.
    """

    PACKAGED = "packaged"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One kind of image. `requirements` is what pip is to install there."""

    kernel: Kernel
    requirements: tuple[str, ...]

    @classmethod
    def of_this_checkout(cls, kernel: Kernel) -> "Recipe":
        """The node for this checkout's agent and tests."""
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        needed = (*project["project"]["dependencies"], *project["dependency-groups"]["test"])
        return cls(kernel, needed)

    @property
    def digest(self) -> str:
        """Names all that goes into an image but the versions of packages."""
        digest = hashlib.sha256("\0".join((self.kernel, *self.requirements)).encode())
        for path in sorted(_sources()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(HERE.parent)} {len(content)} ".encode() + content)
        return digest.hexdigest()[:12]


def _sources() -> Iterator[Path]:
    """The files that say what is in an image; those that only run guests do not matter."""
    yield from (path for path in FILES.rglob("*") if path.is_file())
    yield from (HERE / name for name in ("recipe.py", "build.py", "kernels.py", "commands.py"))
    yield OWN_KERNEL_OPTIONS
    yield Path(debian_root.__file__)
    yield Path(root_folder.__file__)
    yield Path(images.__file__)


def cni_configuration(kernel: Kernel) -> dict[str, object]:
    """The network of the node's pods; masquerading and host ports need address translation."""
    translates = kernel is Kernel.OWN
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": translates,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "10.97.0.0/16"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    host_ports = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
    plugins = [bridge, host_ports] if translates else [bridge]
    return {"cniVersion": "1.0.0", "name": "guest", "plugins": [*plugins, {"type": "loopback"}]}
