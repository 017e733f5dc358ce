"""Files of the host, and what lies about in the agent's own folders."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.fuzz.values import ValueGenerator, as_json
from trio_kubelet.errors import StartError
from trio_kubelet.kernel.mountinfo import parse_mountinfo
from trio_kubelet.node.machine import read_machine

GOOD: Mapping[str, bytes] = {
    "etc/resolv.conf": b"# local\nnameserver 10.0.0.53\nsearch example.com a.\noptions ndots:2\n",
    "etc/hosts": b"127.0.0.1\tlocalhost\n192.0.2.10\tnode\n",
    "etc/os-release": b'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
    "etc/machine-id": b"3d1219c7c4c5\n",
    "proc/meminfo": b"MemTotal:        4030068 kB\nSwapTotal:       1048576 kB\n",
    "proc/sys/kernel/pid_max": b"4194304\n",
    "proc/sys/kernel/threads-max": b"31000\n",
    "proc/sys/kernel/random/boot_id": b"99135cc2-87e3\n",
}
MOUNTS = (
    b"22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n"
    b"40 22 0:45 / /pods/a\\040b rw - tmpfs tmpfs rw,size=4k\n"
)


class HostFiles:
    """A host of its own below a folder."""

    def __init__(self, root: Path, values: ValueGenerator) -> None:
        self._root = root
        self._values = values
        self._folder = root / "machine"
        self.mend()

    @property
    def resolv_conf(self) -> Path:
        """What the setting resolvConf names."""
        return self._folder / "etc/resolv.conf"

    @property
    def hosts(self) -> Path:
        """The node's hosts file."""
        return self._folder / "etc/hosts"

    def mend(self) -> None:
        """Make all files good."""
        for name, data in GOOD.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def spoil(self) -> Iterator[str]:
        """Put something else into one of the files; yield what the readers stumble over."""
        chance = self._values.chance
        name = chance.choice(("mountinfo", *GOOD))
        data = self._content(GOOD.get(name, MOUNTS))
        if name == "mountinfo":
            yield from _stumbled(lambda: parse_mountinfo(data), data)
            return
        (self._folder / name).write_bytes(data)
        yield from _stumbled(lambda: read_machine(self._root, self._folder), data)

    def _content(self, good: bytes) -> bytes:
        chance = self._values.chance
        if chance.random() < 0.2:
            return self._values.data()
        line = chance.choice((b"nameserver", b"nameserver \xff", b"search", b"options \xff", b"\r"))
        return self._values.spoiled_bytes(chance.choice((good, good + line + b"\n", line + good)))

    def litter(self, kubelet: Path, logs: Path) -> int:
        """Leave things in the agent's folders that it did not put there; return how many."""
        chance, values = self._values.chance, self._values
        records = list((kubelet / "static-pods").rglob("*.json"))
        for path in chance.sample(records, min(3, len(records))):
            # A good pod's record may go: its manifest is there, and its containers tell the UID.
            path.write_bytes(chance.choice((values.data(), as_json(values.value()))))
        (kubelet / "static-pods" / "file").mkdir(parents=True, exist_ok=True)
        (kubelet / "static-pods/file/file-0.json").write_bytes(
            as_json({"origin": values.value(1), "pods": values.value(2)})
        )
        (kubelet / "config.json").write_bytes(
            as_json(
                {"auths": {values.text(): {"auth": values.text(), "username": values.value(1)}}}
            )
        )
        (kubelet / "actuated_pods_state").write_bytes(as_json(values.value()))
        for folder in (kubelet / "pods", logs / "pods"):
            for name in (b"a_b_\xff", b"\xff", b"x y", b"_", b"a_b_c_d", b"..."):
                (folder / os.fsdecode(name)).mkdir(parents=True, exist_ok=True)
        return len(records[:3]) + 15


def _stumbled(read: Callable[[], object], data: bytes) -> Iterator[str]:
    try:
        read()
    except (StartError, OSError):
        return
    except ValueError as error:
        if "MemTotal" not in str(error):
            yield f"{data!r:.200}: {traceback.format_exc(limit=-3)}"
    except Exception:
        yield f"{data!r:.200}: {traceback.format_exc(limit=-3)}"
