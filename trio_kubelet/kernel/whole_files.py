"""Files that are replaced whole: who reads one sees the old content or the new, never a part.

The new content is first in a hidden file beside the old one, which one writer at a time may use.
What is left of it when the agent is killed goes with the next content. What has to be written on a
full disk, too, has a spare file there, whose room is its own (`reserve`, `write_reserved`).
Everything here blocks.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_BLOCK = 512
"""The unit of st_blocks, whatever the file system's own is."""

_libc = ctypes.CDLL(None, use_errno=True)


def write_whole(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    folder_mode: int | None = None,
    durable: bool = False,
) -> None:
    """Replace a file. With `folder_mode` its folder is made if there is none.

    `durable`: the content is on the disk before it takes the old one's place, and it has taken it
    when this returns, whatever becomes of the machine's power. Raises OSError that names the file
    itself, however it was to be written.
    """
    if folder_mode is not None:
        make_folder(path.parent, folder_mode, durable=durable)
    write_all_whole({path: data}, mode=mode, durable=durable)


def write_all_whole(
    contents: Mapping[Path, bytes], *, mode: int = 0o600, durable: bool = False
) -> None:
    """Replace several files, or none if one of the contents cannot be written; as `write_whole`.

    It is done in three rounds, so that the disk is waited for once.
    """
    with ExitStack() as stack:
        files = {
            path: stack.enter_context(_beside(path, data, mode)) for path, data in contents.items()
        }
        for path, file in files.items() if durable else ():
            _sync(path, file)
        for path, file in files.items():
            Path(file.name).replace(path)
    for folder in {path.parent for path in contents} if durable else ():
        sync_folder(folder)


def reserve(path: Path, size: int) -> None:
    """Keep room on the disk for a content of a file, of `size` bytes: its spare file has it.

    What is reserved already costs a look at it. Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(_spare(path), "rb+", opener=lambda name, _: os.open(name, flags, 0o600)) as spare:
        found = os.fstat(spare.fileno())
        if found.st_size >= size and found.st_blocks * _BLOCK >= size:
            return
        os.posix_fallocate(spare.fileno(), 0, size)
        _sync(path, spare)
    sync_folder(path.parent)


def write_reserved(path: Path, data: bytes, size: int, *, folder_mode: int | None = None) -> None:
    """Replace a file by one of `size` bytes for which even a full disk has room; durable.

    Spaces and a newline follow the content. It is written over the spare file, and the two exchange
    their names: so the old one is the spare of the next content, which has as much room. A file
    system that never writes in place (btrfs) has room for one more content alone. Where there is no
    spare, or the content is longer, it is written as by `write_whole`. A reader that has had the
    file open for longer than until the next content may read parts of a later one. Raises OSError.
    """
    spare = _spare(path)
    try:
        if len(data) >= size:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(spare, "wb", opener=lambda name, _: os.open(name, flags)) as file:
            file.write(data.ljust(size - 1) + b"\n")
            file.truncate()
            _sync(path, file)
        _exchange_or_replace(spare, path)
    except OSError:
        write_whole(path, data, folder_mode=folder_mode, durable=True)
    else:
        sync_folder(path.parent)


def make_folder(folder: Path, mode: int, *, durable: bool = False) -> None:
    """Make a folder, and those above it, where there is none; `durable` as in `write_whole`.

    Raises OSError.
    """
    missing = takewhile(lambda each: not each.is_dir(), (folder, *folder.parents))
    for each in reversed([*missing]):
        each.mkdir(mode=mode, exist_ok=True)
        if durable:
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Let the names in a folder reach the disk: what was renamed, made or removed there.

    Raises OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _spare(path: Path) -> Path:
    return path.with_name(f".{path.name}.spare")


def _exchange_or_replace(spare: Path, path: Path) -> None:
    """Exchange two files; where there is but one, or the file system cannot, the spare is gone."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG(path.lstat().st_mode):
            failed = _libc.renameat2(
                ctypes.c_int(_AT_FDCWD),
                ctypes.c_char_p(os.fsencode(spare)),
                ctypes.c_int(_AT_FDCWD),
                ctypes.c_char_p(os.fsencode(path)),
                ctypes.c_uint(_RENAME_EXCHANGE),
            )
            if not failed:
                return
    spare.replace(path)


def _sync(path: Path, file: IO[bytes]) -> None:
    """Let the content reach the disk, and an error name the file that is to have it."""
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


def remove_whole(path: Path) -> bool:
    """Remove a file, and what a process that was killed has left of a new content for it.

    Returns whether there was either. Raises OSError.
    """
    found = False
    for each in (path, _unfinished(path)):
        # A file system that is read only refuses to remove even what is not there.
        with suppress(FileNotFoundError):
            if os.path.lexists(each):
                each.unlink()
                found = True
    return found


def _unfinished(path: Path) -> Path:
    """Return the file beside one in which its new content is written."""
    return path.with_name(f".{path.name}.new")


@contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[IO[bytes]]:
    """Write a file of its own, still to be renamed; else it is gone at the end."""
    new = _unfinished(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        new.unlink(missing_ok=True)
        with open(new, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()  # Whether or not it has to reach the disk.
            yield file
    except OSError as error:
        if error.filename in (None, new, str(new)):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
