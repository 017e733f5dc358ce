"""Tells when a file or folder changed, by inotify, even while it does not exist.

A path is watched at two places: itself, and the nearest folder above it that exists, where its
next component may appear. Whoever waits re-arms the watches before each look, so that a folder
that was created, replaced or moved since is the one that is watched. A file counts as changed
when its writer closed it, not when its first bytes arrived. `watchfiles` is not used: it polls
in a thread, which costs up to 100 ms of latency here, keeps a core awake, and does not tell a
file being written from one that is finished.
"""

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import trio
from attrs import frozen

_IN_ATTRIB = 0x4
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_UNMOUNT = 0x2000
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000

_ENTRIES = _IN_CREATE | _IN_DELETE | _IN_MOVED_FROM | _IN_MOVED_TO
_SELF = _IN_DELETE_SELF | _IN_MOVE_SELF
_CONTENT = _ENTRIES | _SELF | _IN_CLOSE_WRITE | _IN_ATTRIB

_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


@frozen
class _Watch:
    """One watched folder or file: `only` limits it to events of that entry, "" to none."""

    path: Path
    only: str


class PathWatch:
    """Watches one path. Use as a context manager; one task waits at a time."""

    __slots__ = ("_fd", "_path", "_watches")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watches: dict[int, _Watch] = {}
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def arm(self) -> None:
        """Watch what is at the path now. Looks paths up, so it belongs into a thread.

        Raises OSError when the kernel refuses (too many watches).
        """
        wanted: dict[int, _Watch] = {}
        parent, missing = self._path.parent, self._path.name
        while not self._add(wanted, parent, missing, _ENTRIES | _SELF | _IN_CLOSE_WRITE):
            parent, missing = parent.parent, parent.name
        self._add(wanted, self._path, "", _CONTENT)
        for stale in self._watches.keys() - wanted.keys():
            _libc.inotify_rm_watch(self._fd, stale)
        self._watches = wanted

    async def changed(self) -> None:
        """Return once something happened to the path since the watches were armed."""
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            if self._drain():
                return

    def _add(self, wanted: dict[int, _Watch], path: Path, only: str, mask: int) -> bool:
        descriptor = _libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if descriptor < 0 and ctypes.get_errno() in _ABSENT and path != path.parent:
            return False
        wanted[_checked(descriptor, f"inotify_add_watch {path}")] = _Watch(path, only)
        return True

    def _drain(self) -> bool:
        """Read all that is queued; whether any of it matters."""
        matters = False
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return matters
            offset = 0
            while offset < len(data):
                descriptor, mask, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                name = os.fsdecode(data[offset - length : offset].rstrip(b"\0"))
                matters |= self._matters(descriptor, mask, name)

    def _matters(self, descriptor: int, mask: int, name: str) -> bool:
        if mask & _IN_Q_OVERFLOW:
            return True
        watch = self._watches.get(descriptor)
        if watch is None or mask & _IN_IGNORED:
            return False
        if mask & (_SELF | _IN_UNMOUNT):
            return True
        if watch.only and name != watch.only:
            return False
        return not (mask & _IN_CREATE) or not _is_being_written(watch.path / name)


_ABSENT = frozenset({2, 20})  # ENOENT, ENOTDIR


def _is_being_written(path: Path) -> bool:
    """Whether a new entry is a file that its writer will close: neither a link nor a folder."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return (status.st_mode & 0o170000) == 0o100000 and status.st_nlink == 1


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
