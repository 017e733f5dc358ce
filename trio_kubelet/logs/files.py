"""The files of a container's log: the newest one, and those that it was rotated into.

`0.log` is renamed to `0.log.<time>`, a new `0.log` is made, and the renamed one is packed into
`0.log.<time>.gz` some time later. Paths are resolved beneath the folder of all logs, and no
symlink is followed: a pod with a hostPath may have put one anywhere. All of it blocks.
"""

import gzip
import io
import os
import re
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import structlog
from attrs import frozen

from trio_kubelet.logs.lines import MAX_LINE_BYTES, is_part
from trio_kubelet.volumes.safe_open import open_file_beneath, open_folder_beneath, opened_folder

log = structlog.get_logger("logs")

BLOCK_BYTES = 64 * 1024
STEP_BYTES = 1024 * 1024
"""So much is searched in one go for the beginning of the last lines."""

_PACKED = ".gz"
_SIZE = struct.Struct("<I")


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


@frozen
class OpenLog:
    """A log that is read. `rotated` are the rotated ones that there were when it was opened."""

    file: BinaryIO
    rotated: frozenset[str]


def open_newest(folder: int, name: str) -> OpenLog:
    """Open a log by its name. Raises OSError."""
    while True:
        rotated = rotated_names(os.listdir(folder), name)
        file = _open(folder, name)
        if rotated_names(os.listdir(folder), name) == rotated:
            return OpenLog(file, rotated)
        file.close()


def open_next(folder: int, name: str, known: OpenLog) -> list[OpenLog]:
    """The files that follow a log which was rotated, oldest first; empty if it is still the newest.

    The oldest of the rotated ones that are new is the one that was read, unless that was removed.
    Raises OSError.
    """
    here = os.fstat(known.file.fileno())
    if _is_same(here, os.stat(name, dir_fd=folder, follow_symlinks=False)):
        return []  # As nearly always: the log has only become longer.
    newest = open_newest(folder, name)
    missed = sorted(newest.rotated - known.rotated)
    if missed and _is_rotated_into(folder, missed[0], here):
        del missed[0]
    between = [_open_rotated(folder, each) for each in missed]
    return [*(OpenLog(file, newest.rotated) for file in between if file), newest]


def rotated_names(names: Iterable[str], name: str) -> frozenset[str]:
    """Those of the names that a log was rotated into, packed or not, without `.gz`."""
    rotated = re.compile(re.escape(name) + r"\.\d{8}-\d{6}(\.gz)?")
    return frozenset(each.removesuffix(_PACKED) for each in names if rotated.fullmatch(each))


def _is_rotated_into(folder: int, name: str, read: os.stat_result) -> bool:
    """True if the log that is `read` was rotated into this one; a packed one tells by its size."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return _packed_size(folder, name) == read.st_size % (1 << 32)
    return _is_same(found, read)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _packed_size(folder: int, name: str) -> int | None:
    """The size of a packed log, modulo 4 GiB (RFC 1952); None if it is gone."""
    try:
        with _open(folder, name + _PACKED) as packed:
            packed.seek(-_SIZE.size, os.SEEK_END)
            size: int = _SIZE.unpack(packed.read())[0]
            return size
    except (OSError, struct.error):
        return None


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


def read_piece(file: BinaryIO, size: int) -> bytes:
    """The next bytes, empty at the end: a packed log that is damaged ends there. OSError."""
    try:
        return file.read(size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        log.warning("rotated container log is damaged", error=str(error))
        return b""


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
