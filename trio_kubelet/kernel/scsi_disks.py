"""SCSI disks of the node, as the kernel shows them in sysfs: whose they are, scans and removals.

All of it blocks. A disk is named as in /sys/block: `sda`. One that is reached by several paths is a
disk for each of them, and a multipath device (`dm-0`), where multipathd has made one of them.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from trio_kubelet.kernel.mountinfo import mount_points

_MULTIPATH = "mpath-"
"""The beginning of the kernel's UUID of a multipath device."""


@frozen(kw_only=True)
class ISCSISession:
    """A session with an iSCSI target. `folder` is that of its device."""

    folder: Path
    target: str
    interface: str
    address: str
    port: str


@frozen(kw_only=True)
class SCSIDisks:
    """The disks of the machine; `sys` and `dev` are where the kernel shows them."""

    sys: Path = Path("/sys")
    dev: Path = Path("/dev")

    def sessions(self) -> Sequence[ISCSISession]:
        """Return the sessions with iSCSI targets; one that ends meanwhile is left out."""
        found = []
        for each in sorted(self.sys.glob("class/iscsi_session/session*")):
            folder = (each / "device").resolve()
            connections = sorted(folder.glob("connection*/iscsi_connection/connection*"))
            if connections:
                session = ISCSISession(
                    folder=folder,
                    target=_text(each / "targetname"),
                    interface=_text(each / "ifacename"),
                    address=_text(connections[0] / "persistent_address"),
                    port=_text(connections[0] / "persistent_port"),
                )
                found.append(session)
        return found

    def disks_of_session(self, session: ISCSISession) -> Mapping[int, str]:
        """Return the names of a session's disks by their LUNs."""
        disks = session.folder.glob("target*/*:*:*:*/block/*")
        return {int(each.parents[1].name.rpartition(":")[2]): each.name for each in disks}

    def fibre_channel_hosts(self) -> Sequence[str]:
        """Return the names of the Fibre Channel adapters: `host1`."""
        return sorted(each.name for each in self.sys.glob("class/fc_host/host*"))

    def disks_named(self, folder: str, ends: Iterable[str]) -> Sequence[str]:
        """Return the disks that udev has a link to in /dev/disk/FOLDER with one of these ends."""
        wanted = tuple(ends)
        links = sorted(self.dev.glob(f"disk/{folder}/*"))
        return list(
            dict.fromkeys(each.resolve().name for each in links if each.name.endswith(wanted))
        )

    def scan(self, host: str, lun: int | None) -> None:
        """Have an adapter look for disks: for one LUN of all its targets, or for all. OSError."""
        where = f"- - {'-' if lun is None else lun}"
        (self.sys / "class/scsi_host" / host / "scan").write_text(where)

    def device(self, name: str) -> Path:
        """Return the device of a disk."""
        return self.dev / name

    def multipath(self, disk: str) -> str:
        """Return the multipath device that a disk is a path of, "" if there is none."""
        for each in self.sys.glob(f"block/dm-*/slaves/{disk}"):
            if _text(each.parents[1] / "dm/uuid").startswith(_MULTIPATH):
                return each.parents[1].name
        return ""

    def mapped_name(self, device: str) -> str:
        """Return the name of a multipath device for the tools: `mpatha`."""
        return _text(self.sys / "block" / device / "dm/name")

    def is_in_use(self, disk: str) -> bool:
        """True if a disk, or a partition of it, is mounted, or another device is made of it."""
        folder = self.sys / "block" / disk
        parts = (folder, *folder.glob(f"{disk}*"))
        if any(any((each / "holders").glob("*")) for each in parts):
            return True
        numbers = {_text(each / "dev") for each in parts}
        return any(each.device in numbers for each in mount_points())

    def remove(self, disk: str) -> None:
        """Write what is still in memory of a disk, and have the kernel forget it. OSError.

        One that is not there is fine.
        """
        delete = self.sys / "block" / disk / "device/delete"
        if delete.exists():
            _flush(self.device(disk))
            delete.write_text("1")


def _flush(device: Path) -> None:
    opened = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
