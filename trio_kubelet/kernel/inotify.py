"""inotify(7) on trio: watches on files and folders, and the events that they bring.

One `Inotify` is one kernel queue. It says what the kernel said and no more; what that means is
for its user: a folder of manifests (`path_watch.py`), a lock file that somebody wants
(`file_lock.py`). `watchfiles` is not used for this: it polls in a thread, which costs up to
100 ms of latency, keeps a core awake, and does not tell a file being written from one that is
finished.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from enum import IntFlag
from pathlib import Path
from types import TracebackType
from typing import Self

import trio
from attrs import frozen


class InotifyMask(IntFlag):
    """Events to watch for, and events that happened. Names are the kernel's without `IN_`."""

    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    OPEN = 0x20
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000


@frozen(kw_only=True)
class InotifyEvent:
    """One event. `name` is that of the entry when a folder is watched, else empty.

    `watch` is the number of the watch, -1 when the queue has overflowed.
    """

    watch: int
    mask: InotifyMask
    name: str


_HEADER = struct.Struct("iIII")
_READ_BYTES = 32 * 1024
"""A thousand events with a short name each, which takes some milliseconds."""
_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """A queue of events. Use as a context manager; one task waits at a time."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        """Open a queue. Raises OSError when the kernel refuses (too many of them)."""
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A thread that still looks a path up must not go on with whatever has this number next.
        fd, self._fd = self._fd, -1
        os.close(fd)

    def watch(self, path: Path, mask: InotifyMask) -> int:
        """Watch a path and return the watch's number; the same one for a path watched already.

        Looks the path up, so it may block. Raises OSError: the path is not there, or the kernel
        allows no more watches.
        """
        number = _libc.inotify_add_watch(self._fd, os.fsencode(path), int(mask))
        return _checked(number, f"inotify_add_watch {path}")

    def unwatch(self, number: int) -> None:
        """End a watch; one that has ended by itself is no error."""
        _libc.inotify_rm_watch(self._fd, number)

    async def events(self) -> tuple[InotifyEvent, ...]:
        """Wait for events; returns some of those that are queued, oldest first.

        It reads once: who writes to several files may queue events faster than they are read.
        Cancelling loses none.
        """
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            if events := tuple(self._read()):
                return events

    def _read(self) -> Iterator[InotifyEvent]:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            number, mask, _, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size + length
            name = os.fsdecode(data[offset - length : offset].rstrip(b"\0"))
            yield InotifyEvent(watch=number, mask=InotifyMask(mask), name=name)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
