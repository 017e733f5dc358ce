"""Opens and removes what is inside a folder whose content belongs to somebody else.

A pod may put symlinks anywhere into its volumes, at any moment. Nothing here follows one out of
the folder: the kernel resolves the path beneath a descriptor of the folder (openat2, Linux 5.6),
so there is no gap between the check and the use. `remove_tree` neither follows symlinks nor
enters anything that is mounted inside.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from trio_kubelet.tasks.fair_limiter import Share

_SYS_OPENAT2 = 437
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RESOLVE_NO_XDEV = 0x01
_FOLDERS_AT_ONCE = 1000
"""Names of folders that are kept while a folder is emptied; a container may make millions."""
FILES_IN_A_PIECE = 2000
"""Some hundredths of a second on most disks."""
_TRIES = 100
"""To resolve a path of which the kernel could not tell that it stays inside. Of those with `..` in
a symlink, one in twenty needs a second try beside two processes that do nothing but rename."""
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def has_openat2() -> bool:
    """True if the kernel has openat2 (Linux 5.6), without which nothing here works.

    A sandbox with an old list of system calls denies it (ENOSYS, EPERM) on newer kernels, too.
    """
    flags = os.O_PATH | os.O_DIRECTORY
    try:
        os.close(_openat2(_AT_FDCWD, "/", flags, _RESOLVE_NO_MAGICLINKS))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Hold a descriptor of a folder, to resolve other paths beneath it."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_beneath(folder: int, path: str) -> int:
    """Return an O_PATH descriptor of a path beneath a folder, following symlinks inside it only.

    Raises OSError: EXDEV where the path leads out of the folder.
    """
    return _openat2(folder, path, os.O_PATH, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)


def open_folder_beneath(folder: int, path: str) -> int:
    """Return a readable descriptor of a folder beneath a folder; no symlink is followed at all.

    Raises OSError: ELOOP for a symlink on the way, ENOTDIR for what is no folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    return _openat2(folder, path or ".", flags, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)


def open_file_beneath(folder: int, path: str) -> int:
    """Return a readable descriptor of a plain file beneath a folder, following no symlink.

    Raises OSError: ELOOP for a symlink, EINVAL for what is no plain file. A pipe that somebody
    put there is not waited for.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = _openat2(folder, path, flags, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", path)
    return descriptor


def rename_to_free_name(folder: int, name: str, free_name: str) -> None:
    """Rename what is in a folder, in one step; raises FileExistsError if the new name is taken.

    Raises OSError: EINVAL for a file system that cannot do it so.
    """
    failed = _libc.renameat2(
        ctypes.c_int(folder),
        ctypes.c_char_p(os.fsencode(name)),
        ctypes.c_int(folder),
        ctypes.c_char_p(os.fsencode(free_name)),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), free_name)


def make_folders_beneath(folder: int, path: str, mode: int) -> None:
    """Make a folder and those above it beneath a folder, with `mode` whatever the umask.

    Symlinks that stay inside are followed, as in `open_beneath`. Folders that exist are left
    as they are; raises OSError, FileExistsError for a file in the way.
    """
    parent = os.dup(folder)
    try:
        for number, name in enumerate(parts := PurePosixPath(path).parts):
            _make_folder(parent, name, mode)
            inside = "/".join(parts[: number + 1])
            below = _openat2(
                folder,
                inside,
                os.O_PATH | os.O_DIRECTORY,
                _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS,
            )
            os.close(parent)
            parent = below
    finally:
        os.close(parent)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, or a file; nothing is fine, too.

    Raises OSError: EXDEV or EBUSY where something is mounted inside, of which nothing is removed.
    Needs only one descriptor, however deep the tree is.
    """
    for _ in _removal(path):
        pass


async def remove_in_pieces(threads: Share, path: Path) -> None:
    """As `remove_tree`, in threads: the slot is given back now and then, so that others have turns.

    Cancelled, it leaves what it has not come to.
    """
    with contextlib.closing(_removal(path)) as removal:
        while await threads.run_sync(lambda: next(removal, True)) is None:
            pass


def _removal(path: Path) -> Generator[None, None, None]:
    """Remove a tree, with a pause after so many files."""
    with contextlib.suppress(FileNotFoundError), opened_folder(path.parent) as parent:
        status = os.lstat(path.name, dir_fd=parent)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(path.name, dir_fd=parent)
            return
        with contextlib.closing(_emptying(parent, path.name)) as steps:
            yield from islice(steps, FILES_IN_A_PIECE - 1, None, FILES_IN_A_PIECE)
        os.rmdir(path.name, dir_fd=parent)


def _emptying(parent: int, name: str) -> Generator[None, None, None]:
    """Remove all that is in a folder, walking with one descriptor that goes down and up.

    Yields after each file and each folder.
    """
    here = enter_folder(parent, name)
    above: list[tuple[tuple[int, int], list[str], str]] = []
    try:
        pending = yield from _unlink_files(here)
        while pending or above:
            if pending:
                child = pending.pop()
                below = enter_folder(here, child)
                above.append((folder_identity(here), pending, child))
                os.close(here)
                here = below
                pending = yield from _unlink_files(here)
                continue
            identity, pending, child = above.pop()
            up = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = up
            if folder_identity(here) != identity:
                raise OSError(errno.ESTALE, "moved while it was being removed", child)
            os.rmdir(child, dir_fd=here)
            yield
            pending = pending or (yield from _unlink_files(here))  # There may be more than listed.
    finally:
        os.close(here)


def enter_folder(parent: int, name: str) -> int:
    """Return a readable descriptor of a folder in a folder, which is no symlink or mount point.

    Raises OSError: ELOOP, EXDEV.
    """
    return _openat2(
        parent, name, os.O_RDONLY | os.O_DIRECTORY, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS
    )


def _unlink_files(folder: int) -> Generator[None, None, list[str]]:
    """Unlink everything up to some folders; return the names of those, none: it is empty."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                yield
                continue
            folders.append(entry.name)
            if len(folders) == _FOLDERS_AT_ONCE:
                break
    return folders


def folder_identity(folder: int) -> tuple[int, int]:
    """Return what tells an open folder from all others."""
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _make_folder(parent: int, name: str, mode: int) -> None:
    try:
        os.mkdir(name, mode & 0o777, dir_fd=parent)
    except FileExistsError:
        return
    made = _openat2(
        parent, name, os.O_RDONLY | os.O_DIRECTORY, _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS
    )
    try:
        os.fchmod(made, mode)
    finally:
        os.close(made)


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)
    for _ in range(_TRIES):
        descriptor: int = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        # Anything that was renamed meanwhile, anywhere on the machine, may be the cause.
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number), path)
