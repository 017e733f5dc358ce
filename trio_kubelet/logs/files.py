"""The files of a container's log: the newest one, and those that it was rotated into.

`0.log` is renamed to `0.log.<time>`, a new `0.log` is made, and the renamed one is packed into
`0.log.<time>.gz` some time later. Paths are resolved beneath the folder of all logs, and no
symlink is followed: a pod with a hostPath may have put one anywhere. All of it blocks.
"""

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import structlog
from attrs import define, frozen

from trio_kubelet.logs.lines import MAX_LINE_BYTES, is_part
from trio_kubelet.volumes.safe_open import open_file_beneath, open_folder_beneath, opened_folder

log = structlog.get_logger("logs")

BLOCK_BYTES = 64 * 1024
STEP_BYTES = 1024 * 1024
"""So much is searched in one go for the beginning of the last lines."""

_PACKED, _DELETED = ".gz", " (deleted)"
_ROTATED = re.compile(r"\.\d{8}-\d{6}\Z", re.ASCII)


class NoLogError(Exception):
    """There is no such log below the folder of logs."""


@frozen
class LogPlace:
    """The place of a log: `name` in `folder`, a path beneath `root`."""

    root: Path
    folder: str
    name: str

    @property
    def path(self) -> Path:
        """The whole path."""
        return self.root / self.folder / self.name


def place_of(path: str, root: str) -> LogPlace:
    """The place of a log by the runtime's word. Raises NoLogError if it leads elsewhere."""
    inside = PurePosixPath(path)
    if not inside.is_relative_to(root) or ".." in inside.parts or "\0" in path:
        raise NoLogError(path)
    relative = inside.relative_to(root)
    if len(relative.parts) < 2:
        raise NoLogError(path)
    return LogPlace(Path(root), str(relative.parent), relative.name)


def open_folder(place: LogPlace) -> int:
    """A descriptor of the log's folder. Raises OSError."""
    with opened_folder(place.root) as root:
        return open_folder_beneath(root, place.folder)


@define(eq=False)
class OpenLog:
    """A file of a log that is read, and has to be closed."""

    file: BinaryIO
    older: frozenset[str]
    """The rotated files that are older."""
    is_rotated: bool = False
    """True if it was one when it was opened."""
    is_after_loss: bool = False
    """True if a file between this and the one that was read before is gone."""
    is_damaged: bool = False
    """True if it was packed and could not be read to its end."""

    def read(self, size: int) -> bytes:
        """The next bytes, empty at the end: a packed log that is damaged ends there. OSError."""
        try:
            return self.file.read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            log.warning("rotated container log is damaged", error=str(error))
            self.is_damaged = True
            return b""

    @property
    def rotated_name(self) -> str | None:
        """The name that it was rotated into, without `.gz`, also if it has been removed since."""
        link = Path(f"/proc/self/fd/{self.file.fileno()}").readlink()
        name = link.name.removesuffix(_DELETED).removesuffix(_PACKED)
        return name if _ROTATED.search(name) else None


def open_newest(folder: int, name: str) -> OpenLog:
    """Open a log by its name. Raises OSError."""
    while True:
        rotated = rotated_names(os.listdir(folder), name)
        with ExitStack() as stack:
            file = stack.enter_context(_open(folder, name))
            if rotated_names(os.listdir(folder), name) == rotated:
                stack.pop_all()
                return OpenLog(file, rotated)


def is_newest(folder: int, name: str, opened: OpenLog) -> bool:
    """True if a log has its name still. Raises OSError; FileNotFoundError until it is made anew."""
    here = os.fstat(opened.file.fileno())
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)


def open_next(folder: int, name: str, known: OpenLog) -> OpenLog | None:
    """Open the file that follows a log which was rotated; None if it is still the newest.

    Files go oldest first: if the one that was read is still there, so is all that follows it.
    Raises OSError.
    """
    if is_newest(folder, name, known):
        return None  # As nearly always: the log has only become longer.
    newest = open_newest(folder, name)
    with ExitStack() as stack:
        stack.callback(newest.file.close)
        was_rotated_into = known.rotated_name
        is_after_loss = was_rotated_into not in newest.older
        for each in sorted(newest.older - known.older - {was_rotated_into}):
            file = _open_rotated(folder, each)
            if file is not None:
                older = frozenset(other for other in newest.older if other < each)
                return OpenLog(file, older, is_rotated=True, is_after_loss=is_after_loss)
            is_after_loss = True
        stack.pop_all()
    newest.is_after_loss = is_after_loss
    return newest


def rotated_names(names: Iterable[str], name: str) -> frozenset[str]:
    """The names among these that a log was rotated into, packed or not, without `.gz`."""
    plain = (each.removesuffix(_PACKED) for each in names if each.startswith(name))
    return frozenset(each for each in plain if _ROTATED.fullmatch(each, len(name)))


def _open_rotated(folder: int, name: str) -> BinaryIO | None:
    """A rotated log, packed or not; None if it is gone."""
    for _ in range(2):  # It may be packed between the two looks.
        try:
            return _open(folder, name)
        except FileNotFoundError:
            pass
        try:
            return _unpacked(_open(folder, name + _PACKED))
        except FileNotFoundError:
            pass
    return None


def _unpacked(file: io.FileIO) -> BinaryIO:
    packed = gzip.GzipFile(fileobj=file)
    packed.myfileobj = file  # so that it is closed with it
    return cast("BinaryIO", packed)


def _open(folder: int, name: str) -> io.FileIO:
    return open(open_file_beneath(folder, name), "rb", buffering=0)


class TailSearch:
    """Looks from the end of a file for where its last lines begin.

    A part is no line, unless it is the last, and neither is what has not CRI's form.
    """

    def __init__(self, file: BinaryIO, lines: int) -> None:
        self._file = file
        self._left = lines
        self._position = os.fstat(file.fileno()).st_size
        self._carry = b""
        self._at_end = True

    def step(self) -> int | None:
        """The offset, or None if it takes another step. Raises OSError."""
        until = max(0, self._position - STEP_BYTES)
        while self._position > until:
            size = min(BLOCK_BYTES, self._position)
            self._position -= size
            data = os.pread(self._file.fileno(), size, self._position) + self._carry
            found = self._search(data)
            if found is not None:
                return found
        return None if self._position else 0

    def _search(self, data: bytes) -> int | None:
        """Count the lines of a block, backwards; its first one may begin before it."""
        end = len(data)
        if self._at_end and (end := data.rfind(b"\n") + 1) == 0:
            self._carry = data if len(data) <= MAX_LINE_BYTES else b""
            return None
        while end > 0:
            begin = data.rfind(b"\n", 0, end - 1) + 1
            if begin == 0 and self._position:
                break
            parts = data[begin:end].split(b" ", 3)
            is_line = len(parts) == 4 and (self._at_end or not is_part(parts[2]))
            if is_line:
                if self._left == 0:
                    return self._position + end
                self._left -= 1
            self._at_end = False
            end = begin
        self._carry = data[:end] if end <= MAX_LINE_BYTES else b""
        return None
