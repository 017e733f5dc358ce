"""Sub-paths of volumes, bound for containers, such that nothing leads out of the volume.

What is inside of a volume may be the work of a container, symlinks included. So the path is
resolved by the kernel beneath the volume, and the very file that was found is bound. A volume of a
server that does not answer holds the thread that looks into it, but not the pod, which may end
meanwhile: what is found too late is closed again, and nothing is bound.
"""

import os
import stat
import threading
from functools import partial
from pathlib import Path, PurePosixPath

from attrs import define, field, frozen

from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.folders import make_folders
from trio_kubelet.volumes.mount import MS_BIND, mount, unmount
from trio_kubelet.volumes.safe_open import make_folders_beneath, open_beneath, opened_folder

_FILE_MODE = 0o640


async def bind_sub_path(threads: Share, volume: Path, sub_path: str, target: Path) -> None:
    """Bind what is at `sub_path` inside a volume to `target`; a missing folder is made.

    New folders get the mode of the volume, so that its group can write there. Called again it
    keeps what is bound, unless that is another file now. Raises OSError, and ValueError for a path
    that is absolute, or has `..` or a zero byte in it. Cancelled, it may leave a thread behind that
    looks into the volume, and makes missing folders there.
    """
    path = PurePosixPath(sub_path)
    if path.is_absolute() or ".." in path.parts or "\0" in sub_path:
        raise ValueError(f"subPath {sub_path!r} must stay inside its volume")
    look = _Look()
    try:
        find = partial(look.find, volume, str(path), target)
        await threads.run_sync(find, abandon_on_cancel=True)
        await threads.run_sync(partial(look.bind, target))
    finally:
        look.give_up()


@frozen(kw_only=True)
class _Found:
    """An open file or folder of a volume. `is_bound`: the target is this one already."""

    descriptor: int
    is_folder: bool
    is_bound: bool


@define(eq=False)
class _Look:
    """A look into a volume, which nobody may wait for any more when something is found."""

    _lock: threading.Lock = field(factory=threading.Lock)
    _found: _Found | None = None
    _is_given_up: bool = False

    def find(self, volume: Path, path: str, target: Path) -> None:
        """Open what is at a path in a volume. Blocks for as long as its server; raises OSError."""
        with opened_folder(volume) as folder:
            descriptor = _open_or_make(folder, path)
        try:
            status = os.fstat(descriptor)
            found = _Found(
                descriptor=descriptor,
                is_folder=stat.S_ISDIR(status.st_mode),
                is_bound=is_mounted(target) and _is_same(target.lstat(), status),
            )
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            self._found = found
            if self._is_given_up:
                self._close()

    def bind(self, target: Path) -> None:
        """Bind what was found; looks at nothing in the volume. Raises OSError."""
        found = self._found
        if found is None or found.is_bound:
            return
        if is_mounted(target):
            unmount(target)
        make_folders(target.parent)
        _make_mount_point(target, is_folder=found.is_folder)
        mount(f"/proc/self/fd/{found.descriptor}", target, flags=MS_BIND)

    def give_up(self) -> None:
        """Close what was found, or will be."""
        with self._lock:
            self._is_given_up = True
            self._close()

    def _close(self) -> None:
        if self._found is not None:
            os.close(self._found.descriptor)
            self._found = None


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _open_or_make(folder: int, path: str) -> int:
    try:
        return open_beneath(folder, path)
    except FileNotFoundError:
        make_folders_beneath(folder, path, stat.S_IMODE(os.fstat(folder).st_mode))
        return open_beneath(folder, path)


def _make_mount_point(target: Path, *, is_folder: bool) -> None:
    if target.exists() and target.is_dir() != is_folder:
        target.rmdir() if target.is_dir() else target.unlink()
    if is_folder:
        make_folders(target)
    else:
        target.touch(_FILE_MODE)
