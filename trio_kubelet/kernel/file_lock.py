"""The lock file: one agent at a time (flags --lock-file and --exit-on-lock-contention).

The lock is an exclusive flock(2), held as long as the process lives. It is waited for, as the
Go kubelet waits: an agent that is to take over is started beside the old one, and goes on when
that has ended. With --exit-on-lock-contention the old one ends by itself as soon as somebody
opens the file, which is how it learns that the lock is wanted.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from trio_kubelet.kernel.inotify import Inotify, InotifyMask

POLL_SECONDS = 0.1
"""The kernel tells nobody that a lock is free, and a thread in flock(2) cannot be cancelled."""
_WANTED = InotifyMask.OPEN | InotifyMask.DELETE_SELF | InotifyMask.MOVE_SELF | InotifyMask.ATTRIB


class FileLock:
    """A lock that is held; made by `hold_lock`."""

    __slots__ = ("_descriptor", "_inotify")

    def __init__(self, descriptor: int, inotify: Inotify) -> None:
        self._descriptor = descriptor
        self._inotify = inotify

    async def wanted(self) -> None:
        """Return as soon as another process wants the lock, at once if one has meanwhile.

        It wants it when it opens the file; and since a lock on a file that was removed or
        renamed keeps nobody out, that counts too.
        """
        while True:
            for event in await self._inotify.events():
                if event.mask & InotifyMask.ATTRIB and os.fstat(self._descriptor).st_nlink:
                    continue
                return


@asynccontextmanager
async def hold_lock(path: Path, on_wait: Callable[[], None]) -> AsyncIterator[FileLock]:
    """Take the lock, waiting for whoever holds it, and hold it.

    `on_wait` is called once if it has to wait. Raises OSError when the file cannot be made or
    opened, or not be watched. Cancelled while it waits, it leaves nothing behind but the file.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with Inotify() as inotify:
            # By its descriptor: the path may lead to another file by now.
            inotify.watch(Path(f"/proc/self/fd/{descriptor}"), _WANTED)
            waits = False
            while not _taken(descriptor):
                if not waits:
                    waits = True
                    on_wait()
                await trio.sleep(POLL_SECONDS)
            yield FileLock(descriptor, inotify)
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
