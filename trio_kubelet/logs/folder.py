"""Files and folders below one folder, and the page that lists a folder. Opening blocks.

Symlinks are followed as long as they stay inside. They are resolved first; what is opened then is
a path without one, beneath the folder, so that nobody can exchange a part of it in between.
"""

import errno
import os
import stat
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from trio_kubelet.volumes.safe_open import open_file_beneath, open_folder_beneath, opened_folder

SNIFFED_BYTES = 512
_SAFE_IN_PATHS = "$&+,/:;=@"
_BINARY = frozenset(range(0x20)) - frozenset(b"\t\n\x0c\r\x1b")


@frozen
class OpenFile:
    """A plain file that is open for reading, who opened it closes it."""

    descriptor: int
    size_bytes: int
    content_type: str


@frozen
class Folder:
    """The names in a folder, sorted; those of folders end with a slash."""

    names: tuple[str, ...]


def open_inside(root: Path, path: str) -> OpenFile | Folder:
    """Open what a relative path leads to below `root`.

    Raises OSError: EXDEV where a symlink leads out, EINVAL for what is neither file nor folder.
    """
    inside = resolved_inside(root, path)
    with opened_folder(root) as beneath:
        try:
            folder = open_folder_beneath(beneath, inside)
        except NotADirectoryError:
            return _opened(open_file_beneath(beneath, inside))
    try:
        with os.scandir(folder) as entries:
            names = sorted(f"{each.name}/" if _is_folder(each) else each.name for each in entries)
        return Folder(tuple(names))
    finally:
        os.close(folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """True if it is one, or leads to one; a symlink that leads to itself does not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def resolved_inside(root: Path, path: str) -> str:
    """The path below `root` that `path` is after all symlinks. Raises OSError (EXDEV)."""
    real_root = os.path.realpath(root)
    try:
        if path.startswith("/"):
            raise ValueError(path)
        real = os.path.realpath(f"{real_root}/{path}")
        return str(Path(real).relative_to(real_root))
    except ValueError as error:  # outside, or a NUL in the path
        raise OSError(errno.EXDEV, "path escapes from parent", path) from error


def folder_page(folder: Folder) -> bytes:
    """A page with a link for each name, in the Go kubelet's form."""
    links = (
        f'<a href="{escape(relative_url(name))}">{escape(name)}</a>\n' for name in folder.names
    )
    begin = '<!doctype html>\n<meta name="viewport" content="width=device-width">\n<pre>\n'
    return f"{begin}{''.join(links)}</pre>\n".encode(errors="surrogateescape")


def relative_url(path: str) -> str:
    """A relative path as a URL has it."""
    target = quote(path.encode(errors="surrogateescape"), safe=_SAFE_IN_PATHS)
    # Else it would be a scheme.
    return f"./{target}" if ":" in path.partition("/")[0] else target


def _opened(descriptor: int) -> OpenFile:
    try:
        size = os.fstat(descriptor).st_size
        begin = os.pread(descriptor, SNIFFED_BYTES, 0)
    except OSError:
        os.close(descriptor)
        raise
    return OpenFile(descriptor, size, content_type(begin))


def content_type(begin: bytes) -> str:
    """The type of a file by its first bytes: text or not. Never a page: others wrote the logs."""
    return "application/octet-stream" if _BINARY & {*begin} else "text/plain; charset=utf-8"


def existing_logs(root: Path, names: Iterable[str]) -> OpenFile:
    """Open the first plain file that is there. Raises FileNotFoundError if none is, OSError."""
    for name in names:
        try:
            status = (root / name).stat()
        except OSError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            found = open_inside(root, name)
            assert isinstance(found, OpenFile)
            return found
    raise FileNotFoundError(errno.ENOENT, "no such file")
