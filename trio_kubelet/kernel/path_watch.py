"""Tells when a file or folder changed, by inotify, even while it does not exist.

A path is watched at two places: itself, and the nearest folder above it that exists, where its
next component may appear. Whoever waits re-arms the watches before each reading, so that a folder
that was created, replaced or moved since is the one that is watched. A file counts as changed
when its writer closed it, not when its first bytes arrived.
"""

import errno
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
import trio
from attrs import frozen

from trio_kubelet.kernel.inotify import Inotify, InotifyEvent, InotifyMask

log = structlog.get_logger("files")

_ENTRIES = InotifyMask.CREATE | InotifyMask.DELETE | InotifyMask.MOVED_FROM | InotifyMask.MOVED_TO
_SELF = InotifyMask.DELETE_SELF | InotifyMask.MOVE_SELF
_CONTENT = _ENTRIES | _SELF | InotifyMask.CLOSE_WRITE | InotifyMask.ATTRIB
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


@frozen
class _Watch:
    """One watched folder or file: `only` limits it to events of that entry, "" to none."""

    path: Path
    only: str


class PathWatch:
    """Watches one path. Use as a context manager; one task waits at a time."""

    __slots__ = ("_inotify", "_path", "_refusal", "_watches")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._refusal = ""
        self._watches: dict[int, _Watch] = {}
        self._inotify: Inotify | None = None
        with suppress(OSError):  # arming tries again, and tells why it cannot
            self._inotify = Inotify()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._inotify is not None:
            self._inotify.__exit__(exc_type, exc, traceback)

    def arm(self) -> None:
        """Watch what is at the path now. Looks paths up, so it belongs into a thread.

        Where the kernel refuses (too many queues or watches) it says so once; changes are not
        told then.
        """
        try:
            self._arm()
        except OSError as error:
            if str(error) != self._refusal:
                log.warning(
                    "file watch failed, falling back to polling",
                    path=str(self._path),
                    problem=str(error),
                )
            self._refusal = str(error)

    def _arm(self) -> None:
        inotify = self._inotify = self._inotify or Inotify()
        wanted: dict[int, _Watch] = {}
        add = partial(self._add, inotify, wanted)
        parent, missing = self._path.parent, self._path.name
        while not add(parent, missing, _ENTRIES | _SELF | InotifyMask.CLOSE_WRITE):
            parent, missing = parent.parent, parent.name
        add(self._path, "", _CONTENT)
        for stale in self._watches.keys() - wanted.keys():
            inotify.unwatch(stale)
        self._watches = wanted

    async def changed(self) -> None:
        """Return once something happened to the path since the watches were armed.

        Where the kernel refused nothing is heard, so whoever waits looks again after some time.
        """
        if self._inotify is None:
            await trio.sleep_forever()
        while True:
            events = await self._inotify.events()
            if any(self._matters(event) for event in events):
                return

    @staticmethod
    def _add(
        inotify: Inotify, wanted: dict[int, _Watch], path: Path, only: str, mask: InotifyMask
    ) -> bool:
        try:
            number = inotify.watch(path, mask)
        except OSError as error:
            if error.errno in _ABSENT and path != path.parent:
                return False
            raise
        wanted[number] = _Watch(path, only)
        return True

    def _matters(self, event: InotifyEvent) -> bool:
        if event.mask & InotifyMask.Q_OVERFLOW:
            return True
        watch = self._watches.get(event.watch)
        if watch is None or event.mask & InotifyMask.IGNORED:
            return False
        if event.mask & (_SELF | InotifyMask.UNMOUNT):
            return True
        if watch.only and event.name != watch.only:
            return False
        is_new = bool(event.mask & InotifyMask.CREATE)
        return not (is_new and _is_being_written(watch.path / event.name))


def _is_being_written(path: Path) -> bool:
    """True if a new entry is a file that its writer will close: neither a link nor a folder."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return (status.st_mode & 0o170000) == 0o100000 and status.st_nlink == 1
