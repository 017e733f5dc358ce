"""subPath: one file or folder inside a volume, mounted as if it were the volume.

What is inside a volume may be the work of a container, symlinks included. So the path is resolved
by the kernel beneath the volume, and the very file that was found is bound to a place under
`volume-subpaths`: the runtime mounts that, and nothing can be swapped in between.
"""

import os
import stat
from pathlib import Path, PurePosixPath

from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.volumes.folders import make_folders
from trio_kubelet.volumes.mount import MS_BIND, mount, unmount
from trio_kubelet.volumes.safe_open import make_folders_beneath, open_beneath, opened_folder

_FILE_MODE = 0o640


def bind_sub_path(volume: Path, sub_path: str, target: Path) -> None:
    """Bind what is at `sub_path` inside a volume to `target`; a missing folder is made.

    New folders get the mode of the volume, so that its group can write there. Called again it
    keeps what is bound, unless that is another file now. Blocks; raises OSError, ValueError for
    a path that is absolute, or has `..` or a zero byte in it.
    """
    path = PurePosixPath(sub_path)
    if path.is_absolute() or ".." in path.parts or "\0" in sub_path:
        raise ValueError(f"subPath {sub_path!r} must stay inside its volume")
    with opened_folder(volume) as folder:
        found = _open_or_make(folder, str(path))
    try:
        _bind(found, target)
    finally:
        os.close(found)


def _open_or_make(folder: int, path: str) -> int:
    try:
        return open_beneath(folder, path)
    except FileNotFoundError:
        make_folders_beneath(folder, path, stat.S_IMODE(os.fstat(folder).st_mode))
        return open_beneath(folder, path)


def _bind(found: int, target: Path) -> None:
    wanted = os.fstat(found)
    if _is_bound(target):
        present = target.lstat()
        if (present.st_dev, present.st_ino) == (wanted.st_dev, wanted.st_ino):
            return
        unmount(target)
    make_folders(target.parent)
    _make_mount_point(target, is_folder=stat.S_ISDIR(wanted.st_mode))
    mount(f"/proc/self/fd/{found}", target, flags=MS_BIND)


def _is_bound(target: Path) -> bool:
    # A bind mount within one file system shows in mountinfo only.
    real = target.resolve()
    return any(each.path == real for each in mount_points(real))


def _make_mount_point(target: Path, *, is_folder: bool) -> None:
    if target.exists() and target.is_dir() != is_folder:
        target.rmdir() if target.is_dir() else target.unlink()
    if is_folder:
        make_folders(target)
    else:
        target.touch(_FILE_MODE)
