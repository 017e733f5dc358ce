"""The sockets below a folder, and the moment at which they are others.

Each look walks the folder and its subfolders and watches every one of them by inotify before it is
read, so that what comes after the look is heard. Names that begin with a dot are passed over, as in
the Go kubelet; so are symbolic links, since what they lead to is not in the folder. Whoever fills
the folder is root, but may be broken: depth and number of entries of a look are limited.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
import trio
from attrs import frozen

from trio_kubelet.kernel.inotify import Inotify, InotifyMask

log = structlog.get_logger("plugins")

MAX_DEPTH = 8
"""Levels of subfolders that are looked into."""
MAX_ENTRIES = 4096
"""Names that are read in one look."""
MAX_SOCKETS = 256

_CHANGES = (
    InotifyMask.CREATE
    | InotifyMask.DELETE
    | InotifyMask.MOVED_FROM
    | InotifyMask.MOVED_TO
    | InotifyMask.DELETE_SELF
    | InotifyMask.MOVE_SELF
)


@frozen
class PluginSocket:
    """A socket that was found. One that was made anew at the same path is another."""

    path: Path
    device: int
    inode: int
    made_at_ns: int
    """The time of its last modification, which for a socket is when it was bound."""


class SocketWatch:
    """Finds the sockets below a folder. Use as a context manager; one task waits at a time."""

    __slots__ = ("_folder", "_inotify", "_problem", "_watches")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inotify: Inotify | None = None
        self._watches: dict[int, Path] = {}
        self._problem = ""

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

    def look(self) -> tuple[PluginSocket, ...]:
        """Return the sockets that are there, in the order of their paths. Blocks.

        What cannot be read is left out; the log says so once.
        """
        self._problem, told_before = "", self._problem
        watches: dict[int, Path] = {}
        found = sorted(self._sockets(watches), key=lambda each: each.path)
        if self._inotify is not None:
            for stale in self._watches.keys() - watches.keys():
                self._inotify.unwatch(stale)
        self._watches = watches
        if len(found) > MAX_SOCKETS:
            self._problem = f"more than {MAX_SOCKETS} sockets, the others are ignored"
        if self._problem and self._problem != told_before:
            log.warning(
                "plugin folder is not seen in full",
                path=str(self._folder),
                problem=self._problem,
            )
        return tuple(found[:MAX_SOCKETS])

    async def changed(self) -> None:
        """Return once something came or went in a folder of the last look.

        Where the kernel refused its watches nothing is heard: look again after some time.
        """
        if self._inotify is None:
            await trio.sleep_forever()
        await self._inotify.events()

    def _sockets(self, watches: dict[int, Path]) -> Iterator[PluginSocket]:
        folders, entries = [(self._folder, 0)], 0
        while folders:
            folder, depth = folders.pop()
            try:
                self._watch(folder, watches)
                with os.scandir(folder) as inside:
                    for entry in inside:
                        entries += 1
                        if entries > MAX_ENTRIES:
                            self._problem = f"more than {MAX_ENTRIES} entries"
                            return
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if depth < MAX_DEPTH:
                                folders.append((Path(entry.path), depth + 1))
                            else:
                                self._problem = f"{entry.path!r} is too deep"
                        elif (socket := _socket(entry)) is not None:
                            yield socket
            except OSError as error:
                # A subfolder may be gone by now; that is no problem.
                if folder == self._folder or not isinstance(error, FileNotFoundError):
                    self._problem = str(error)

    def _watch(self, folder: Path, watches: dict[int, Path]) -> None:
        """Watch a folder; where the kernel allows none, it is looked at now and then."""
        try:
            if self._inotify is None:
                self._inotify = Inotify()
            watches[self._inotify.watch(folder, _CHANGES)] = folder
        except FileNotFoundError:
            raise
        except OSError as error:
            self._problem = str(error)


def _socket(entry: os.DirEntry[str]) -> PluginSocket | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return PluginSocket(Path(entry.path), status.st_dev, status.st_ino, status.st_mtime_ns)
