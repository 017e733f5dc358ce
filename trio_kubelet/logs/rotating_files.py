"""Acts on the files of a log that is rotated. Everything here blocks.

Files are reached by a descriptor of their folder alone, and no symlink is followed on the way: a
pod with a hostPath may have put one anywhere. A killed agent leaves nothing that the next one does
not see by the names (`rotation.py`): a packed file has its name once it is whole and on the disk,
and only then the plain one goes.
"""

import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

from attrs import frozen

from trio_kubelet.logs.files import LogPlace, open_folder
from trio_kubelet.logs.rotation import PACKED, UNFINISHED, RotatedFiles, rotated_files
from trio_kubelet.volumes.safe_open import open_file_beneath, rename_to_free_name

PIECE_BYTES = 1024 * 1024
GZIP_FORMAT = 16 + zlib.MAX_WBITS


@frozen
class LogFolder:
    """The open folder of a log. Methods raise OSError."""

    descriptor: int
    log: str

    def size_bytes(self) -> int | None:
        """The size of the log; None if it is missing. Raises OSError for what is no plain file."""
        try:
            found = os.stat(self.log, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a plain file", self.log)
        return found.st_size

    def rotated(self) -> RotatedFiles:
        """The files that it was rotated into."""
        with os.scandir(self.descriptor) as entries:
            return rotated_files((entry.name for entry in entries), self.log)

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is fine."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def rename(self, name: str) -> None:
        """Give the log a name that none of its files has."""
        os.rename(self.log, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def restore(self, name: str) -> None:
        """Give the log its name back, unless it has been made anew meanwhile."""
        with suppress(FileExistsError, FileNotFoundError):
            rename_to_free_name(self.descriptor, name, self.log)

    def pack(self, name: str) -> Generator[None, None, None]:
        """Pack a rotated file, with a pause after each piece. Closed before the end, it is undone.

        A file that was removed meanwhile leaves no packed one either.
        """
        unfinished = name + UNFINISHED
        source = open_file_beneath(self.descriptor, name)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            target = os.open(unfinished, flags, 0o600, dir_fd=self.descriptor)
            try:
                os.fchmod(target, stat.S_IMODE(os.fstat(source).st_mode))
                yield from _compress(source, target)
                os.fsync(target)
            finally:
                os.close(target)
            if self._has(name):
                folder = self.descriptor
                os.rename(unfinished, name + PACKED, src_dir_fd=folder, dst_dir_fd=folder)
                self.remove(name)
        finally:
            os.close(source)
            self.remove(unfinished)

    def _has(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


@contextmanager
def log_folder(place: LogPlace) -> Iterator[LogFolder]:
    """Open the folder of a log. Raises OSError."""
    descriptor = open_folder(place)
    try:
        yield LogFolder(descriptor, place.name)
    finally:
        os.close(descriptor)


def _compress(source: int, target: int) -> Generator[None, None, None]:
    packer = zlib.compressobj(wbits=GZIP_FORMAT)
    while data := os.read(source, PIECE_BYTES):
        _write(target, packer.compress(data))
        yield
    _write(target, packer.flush())


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
