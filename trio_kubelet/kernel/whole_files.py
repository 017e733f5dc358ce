"""Files that are replaced whole: who reads one sees the old content or the new, never a part.

The new content is first in a hidden file beside the old one, which one writer at a time may use.
What is left of it when the agent is killed goes with the next content. Everything here blocks.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO


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


def _sync(path: Path, file: IO[bytes]) -> None:
    try:
        os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[IO[bytes]]:
    """Write a file of its own, still to be renamed; else it is gone at the end."""
    new = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        new.unlink(missing_ok=True)
        with open(new, "wb", opener=lambda name, _: os.open(name, flags, 0o600)) as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            yield file
    except OSError as error:
        if error.filename in (None, new, str(new)):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
