"""An iSCSI target of the kernel (LIO), for tests of volumes: disks that are files, by configfs.

It needs root, and a kernel with the target; the machine has no more than one of a name. Nobody has
to log in with a password unless it is told so.
"""

import subprocess
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lab import UnavailableError
from lab.started import Started

MODULES = ("iscsi_tcp", "target_core_mod", "target_core_file", "iscsi_target_mod", "sd_mod")
CONFIGFS = Path("/sys/kernel/config")
_TARGETS = CONFIGFS / "target/iscsi"
_DISCOVERY = _TARGETS / "discovery_auth"
_DISKS = CONFIGFS / "target/core"


def load_modules() -> None:
    """Have what the kernel needs; UnavailableError if it has it not."""
    try:
        subprocess.run(("modprobe", "-a", *MODULES), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(f"the kernel has no iSCSI target: {error}") from error


class ISCSITarget(Started):
    """A target with a disk for each LUN, at some portals `address:port`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        portals: Sequence[str],
        luns: int = 1,
        size_bytes: int = 64 << 20,
        chap: Mapping[str, str] | None = None,
        chap_for_discovery: bool = False,
    ) -> None:
        """`folder` has the disks' files; `chap` has `userid` and `password` for a login.

        Who asks which targets there are needs them only `chap_for_discovery`.
        """
        self.folder = folder
        self.name = name
        self.portals = tuple(portals)
        self._luns = luns
        self._size_bytes = size_bytes
        self._chap = chap
        self._asks_at_discovery = chap_for_discovery

    @property
    def _group(self) -> Path:
        return _TARGETS / self.name / "tpgt_1"

    def file(self, lun: int) -> Path:
        """The file of a disk."""
        return self.folder / f"lun{lun}"

    def start(self) -> None:
        """Make the target, with new disks where there are none."""
        load_modules()
        if not (CONFIGFS / "target").is_dir():
            subprocess.run(("mount", "-t", "configfs", "none", CONFIGFS), check=True)
        _TARGETS.mkdir(exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        for portal in self.portals:
            (self._group / "np" / portal).mkdir(parents=True)
        for lun in range(self._luns):
            self._make_disk(lun)
        for setting, value in self._attributes().items():
            (self._group / "attrib" / setting).write_text(value)
        for setting, value in (self._chap or {}).items():
            (self._group / "auth" / setting).write_text(value)
        if self._asks_at_discovery:
            for setting, value in {**(self._chap or {}), "enforce_discovery_auth": "1"}.items():
                (_DISCOVERY / setting).write_text(value)
        (self._group / "enable").write_text("1")

    def stop(self) -> None:
        """Take it away with its sessions; the disks' files stay. Safe to repeat."""
        if self._asks_at_discovery and _DISCOVERY.is_dir():
            (_DISCOVERY / "enforce_discovery_auth").write_text("0")
        if not self._group.is_dir():
            return
        with suppress(OSError):
            (self._group / "enable").write_text("0")
        for lun in range(self._luns):
            (self._group / f"lun/lun_{lun}/disk").unlink(missing_ok=True)
            _remove(self._group / f"lun/lun_{lun}")
        for portal in self.portals:
            _remove(self._group / "np" / portal)
        _remove(self._group)
        _remove(self._group.parent)
        for lun in range(self._luns):
            _remove(self._disk(lun))
            _remove(self._disk(lun).parent)

    def _attributes(self) -> dict[str, str]:
        return {
            "authentication": "0" if self._chap is None else "1",
            "generate_node_acls": "1",
            "cache_dynamic_acls": "1",
            "demo_mode_write_protect": "0",
        }

    def _disk(self, lun: int) -> Path:
        # The kernel wants a number that no other disk has; who stops the target must know it, too.
        number = zlib.crc32(f"{self.name} {lun}".encode()) >> 1
        return _DISKS / f"fileio_{number}" / f"{self.name.rpartition(':')[2]}{lun}"

    def _make_disk(self, lun: int) -> None:
        file, disk = self.file(lun), self._disk(lun)
        if not file.exists():
            with file.open("wb") as made:
                made.truncate(self._size_bytes)
        disk.mkdir(parents=True)
        size = file.stat().st_size
        (disk / "control").write_text(f"fd_dev_name={file},fd_dev_size={size}")
        (disk / "enable").write_text("1")
        shown = self._group / f"lun/lun_{lun}"
        shown.mkdir(parents=True)
        (shown / "disk").symlink_to(disk)


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        folder.rmdir()
