"""Files that processes hold open though they are deleted: space that no walk finds.

They are those of containers and of the node itself, found under /proc, as root only. Files in
memory are left out: they take up no disk. What a container can make the search cost is bounded: so
many processes and descriptors are looked at, and for so long. Everything here blocks.
"""

import ctypes
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

MAX_PROCESSES = 20_000
MAX_DESCRIPTORS = 200_000
MAX_SECONDS = 5.0
MAX_FILES = 1000
"""The largest are told."""
PATH_CHARACTERS = 256

_BLOCK = 512
_ID = re.compile(rb"[0-9a-f]{64}")
_DELETED = " (deleted)"
_IN_MEMORY = frozenset(
    (
        0x01021994,  # tmpfs, which has memfds, too
        0x858458F6,  # ramfs
        0x958458F6,  # hugetlbfs
        0x5345434D,  # secretmem
    )
)
"""The types of file systems whose files take up no disk, by the magic numbers of statfs(2)."""
_STATFS_BYTES = 256
"""More than any kernel's struct statfs has; the magic number is its first field."""
_libc = ctypes.CDLL(None)


@frozen(kw_only=True)
class DeletedFile:
    """A file without a name, and one of the processes that have it open."""

    container_id: str
    """Empty if the process is in none of the pods' containers."""
    pid: int
    command: str
    path: str
    used_bytes: int


@frozen(kw_only=True)
class DeletedFiles:
    """The largest first; `complete` is False if the search came to one of its limits."""

    files: tuple[DeletedFile, ...]
    complete: bool


def find_deleted_files(
    container_ids: Collection[str], processes: Path = Path("/proc")
) -> DeletedFiles:
    """Look through all processes; `container_ids` are the containers of pods."""
    deadline = time.monotonic() + MAX_SECONDS
    found: dict[tuple[int, int], DeletedFile] = {}
    looked_at, pids = 0, _pids(processes)
    complete = len(pids) <= MAX_PROCESSES
    for pid in pids[:MAX_PROCESSES]:
        process = processes / str(pid)
        container_id: str | None = None
        for descriptor in _descriptors(process):
            looked_at += 1
            if looked_at > MAX_DESCRIPTORS or time.monotonic() > deadline:
                return _largest(found.values(), complete=False)
            deleted = _deleted(descriptor)
            if deleted is not None:
                key, path, used_bytes = deleted
                if container_id is None:
                    container_id = _container_of(process, container_ids)
                file = DeletedFile(
                    container_id=container_id,
                    pid=pid,
                    command=_command(process),
                    path=path,
                    used_bytes=used_bytes,
                )
                found.setdefault(key, file)
    return _largest(found.values(), complete=complete)


def _largest(files: Collection[DeletedFile], *, complete: bool) -> DeletedFiles:
    in_order = sorted(files, key=lambda each: (-each.used_bytes, each.pid, each.path))
    return DeletedFiles(files=tuple(in_order[:MAX_FILES]), complete=complete)


def _pids(processes: Path) -> Sequence[int]:
    with os.scandir(processes) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def _container_of(process: Path, container_ids: Collection[str]) -> str:
    """The id of the container that a process is in by its cgroup; empty if it is in none."""
    with suppress(OSError):
        for found in _ID.findall((process / "cgroup").read_bytes()):
            container_id: str = found.decode()
            if container_id in container_ids:
                return container_id
    return ""


def _command(process: Path) -> str:
    with suppress(OSError):
        return (process / "comm").read_bytes().rstrip(b"\n").decode(errors="replace")
    return ""


def _descriptors(process: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(process / "fd") as entries:
        for entry in entries:
            yield Path(entry.path)


def _deleted(descriptor: Path) -> tuple[tuple[int, int], str, int] | None:
    """Identity, path and size of a deleted file of a disk behind a descriptor; None for others."""
    with suppress(OSError):
        path = str(descriptor.readlink())
        if path.endswith(_DELETED):
            file = descriptor.stat()
            if stat.S_ISREG(file.st_mode) and not file.st_nlink and not _is_in_memory(descriptor):
                shown = os.fsencode(path.removesuffix(_DELETED)).decode(errors="replace")
                return (file.st_dev, file.st_ino), shown[:PATH_CHARACTERS], file.st_blocks * _BLOCK
    return None


def _is_in_memory(descriptor: Path) -> bool:
    """True if the file behind a descriptor takes up memory alone. Its name says nothing of that."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.statfs(os.fsencode(descriptor), found) != 0:
        return False
    # All magic numbers have 32 bits, also where the field has more.
    return ctypes.c_uint32.from_buffer(found).value in _IN_MEMORY
