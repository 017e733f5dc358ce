"""Disks that the node mounts itself (iscsi, fc, local): their names, and what is kept of them.

A record is on the disk before a disk is attached, and goes when it is detached. In each pod's
folder another one says which disk a volume of it is. Both have no secrets.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson
import structlog
from attrs import define, evolve, field, frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.whole_files import remove_whole, write_whole
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, plugin_folder
from trio_kubelet.volumes.resolved import ResolvedVolume

log = structlog.get_logger("volumes")

RECORDS = "disks"
"""The folder of records below the root folder."""
_RECORD = ".json"
MAX_NAME_BYTES = 1024
"""Of a disk: the Node has the names of all that are in use, of all pods."""


def require_few(what: str, items: Sequence[str], most: int, most_bytes: int) -> None:
    """Check how many texts a field of a source has, and how long they are. Raises ValueError."""
    if len(items) > most:
        raise ValueError(f"{what}: Too many: {len(items)}: must have at most {most} items")
    for each in items:
        require_short(what, each, most_bytes)


def require_short(what: str, text: str, most_bytes: int) -> None:
    """Check the length of a text. Raises ValueError."""
    if len(text.encode()) > most_bytes:
        raise ValueError(f"{what}: Too long: may not be more than {most_bytes} bytes")


@frozen(kw_only=True)
class AttachedDisk:
    """A disk as its kind names it: `name` in the Node, `folder` below the plugin's.

    `source` is all that it takes to find it again, and `volume` the first that was of it.
    """

    plugin: str
    name: str
    is_block: bool
    folder: tuple[str, ...] = field(eq=False)
    volume: str = field(eq=False)
    source: Mapping[str, Any] = field(eq=False)

    @property
    def unique_name(self) -> str:
        """The name in the Node's `volumesInUse` and `volumesAttached`."""
        return f"{self.plugin}/{self.name}"

    @property
    def digest(self) -> str:
        """The disk and its use as part of a path."""
        return hashlib.sha256(f"{self.name}\0{self.is_block}".encode()).hexdigest()

    @property
    def group(self) -> tuple[str, str]:
        """Its plugin and target: disks of the same may share sessions."""
        return self.plugin, str(self.source.get("target") or self.name)

    def mount_point(self, root: Path) -> Path:
        """Return where its file system is mounted for all pods. Raises ValueError."""
        if any(each in ("", ".", "..") or "/" in each or "\0" in each for each in self.folder):
            raise ValueError(f"{'/'.join(self.folder)!r} cannot name a folder")
        return root.joinpath("plugins", self.plugin, *self.folder)

    def encoded(self) -> bytes:
        """Return the record's text."""
        return orjson.dumps(
            {
                "plugin": self.plugin,
                "name": self.name,
                "isBlock": self.is_block,
                "folder": self.folder,
                "volume": self.volume,
                "source": dict(self.source),
            }
        )


Others = Callable[[], Sequence[AttachedDisk]]
"""Returns the disks that have something in common with one, as of now."""


class DiskKind(Protocol):
    """A kind of disks, by the way in which the node gets at them."""

    @property
    def name(self) -> str:
        """The name of the plugin: `kubernetes.io/iscsi`."""
        ...

    @property
    def is_attached_by_controller(self) -> bool:
        """True if a controller, where there is one, tells which disks the node may have."""
        ...

    def disk(self, volume: ResolvedVolume) -> AttachedDisk:
        """Return the disk of a volume. Raises ValueError."""
        ...

    async def with_what_is_there(
        self, disk: AttachedDisk, others: Sequence[AttachedDisk], threads: Share
    ) -> AttachedDisk:
        """Return a disk with what is there before it is attached, and is to stay after it.

        What is there for `others`, which are attached, goes with the last of them.
        """
        ...

    async def attach(
        self, disk: AttachedDisk, pod: Pod, volume: ResolvedVolume, threads: Share
    ) -> Path:
        """Return the device, which may be attached already.

        Raises OSError, ObjectError, ValueError. It may be cut off, and called again.
        """
        ...

    async def detach(self, disk: AttachedDisk, others: Others, threads: Share) -> None:
        """Undo `attach`, if it was done; `others` may be attached. Raises OSError."""
        ...

    def device(self, disk: AttachedDisk) -> Path | None:
        """Return the device of a disk that is attached. Blocks."""
        ...

    def mounted(self, folders: PodFolders) -> Iterable[tuple[AttachedDisk, Sequence[str]]]:
        """Return the mounted disks that are known without a record, and the UIDs of their pods.

        Blocks.
        """
        ...


@frozen
class DiskRecords:
    """The records of disks. All of it blocks."""

    folders: PodFolders

    def write(self, disk: AttachedDisk) -> AttachedDisk:
        """Write the record of a disk that is to be attached; returns what counts from now on.

        What an earlier record says of what was there before stands. Raises OSError.
        """
        path = self._path(disk)
        known = _read(path)
        disk = disk if known is None else evolve(disk, source=known.source)
        write_whole(path, disk.encoded(), folder_mode=FOLDER_MODE, durable=True)
        return disk

    def read(self, disk: AttachedDisk) -> AttachedDisk:
        """Return a disk with what its record says; as it is, if there is none."""
        return _read(self._path(disk)) or disk

    def remove(self, disk: AttachedDisk) -> None:
        """Remove the record of a disk. Raises OSError."""
        remove_whole(self._path(disk))

    def all(self) -> Sequence[AttachedDisk]:
        """Return all disks that have a record."""
        paths = sorted((self.folders.root / RECORDS).glob(f"[!.]*{_RECORD}"))
        return [disk for disk in map(_read, paths) if disk is not None]

    def use(self, uid: str, disk: AttachedDisk) -> None:
        """Write down that a pod uses a disk as a volume. Raises OSError."""
        path = self._of_pod(uid, disk.plugin, disk.volume)
        write_whole(path, disk.encoded(), folder_mode=FOLDER_MODE, durable=True)

    def unuse_all(self, uid: str, plugin: str) -> None:
        """Forget that a pod uses any disk of a plugin. Raises OSError."""
        for path in self.folders.plugin(uid, plugin, "").glob(f"[!.]*{_RECORD}"):
            remove_whole(path)

    def users(self, plugins: Sequence[str]) -> Iterator[tuple[str, AttachedDisk]]:
        """Return which pods use which disks."""
        for uid in self.folders.uids():
            for plugin in plugins:
                for path in self.folders.plugin(uid, plugin, "").glob(f"[!.]*{_RECORD}"):
                    disk = _read(path)
                    if disk is not None:
                        yield uid, disk

    def _path(self, disk: AttachedDisk) -> Path:
        name = f"{plugin_folder(disk.plugin)}~{disk.digest}{_RECORD}"
        return self.folders.root / RECORDS / name

    def _of_pod(self, uid: str, plugin: str, volume: str) -> Path:
        return self.folders.plugin(uid, plugin, f"{volume}{_RECORD}")


@define(eq=False)
class KnownDisks:
    """The disks that have a record, in memory: a staging is to read no record but its own."""

    _groups: dict[tuple[str, str], dict[AttachedDisk, AttachedDisk]] = field(
        init=False, factory=dict
    )

    def add(self, disk: AttachedDisk) -> None:
        """A disk has a record, or another one than before."""
        self._groups.setdefault(disk.group, {})[disk] = disk

    def remove(self, disk: AttachedDisk) -> None:
        """A disk has no record any more; one that had none is fine."""
        group = self._groups.get(disk.group, {})
        group.pop(disk, None)
        if not group:
            self._groups.pop(disk.group, None)

    def others(self, disk: AttachedDisk) -> Sequence[AttachedDisk]:
        """Return the disks that have something in common with another one."""
        return [each for each in self._groups.get(disk.group, {}).values() if each != disk]


def _read(path: Path) -> AttachedDisk | None:
    """Return the disk of a record; None, and a line in the log, if it cannot be read."""
    try:
        told = orjson.loads(path.read_bytes())
        return AttachedDisk(
            plugin=str(told["plugin"]),
            name=str(told["name"]),
            is_block=bool(told["isBlock"]),
            folder=tuple(map(str, told["folder"])),
            volume=str(told["volume"]),
            source=dict(told["source"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("record of a disk is not readable", path=str(path), error=repr(error))
        return None
