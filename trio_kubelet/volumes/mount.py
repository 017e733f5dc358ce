"""Mounts and unmounts: the system calls, and file systems in memory.

The calls go straight to libc: no `mount` binary is needed, nothing canonicalizes a path on the
way, and a failure is an OSError with its number. They block, so they belong into a thread.
"""

import ctypes
import os
import re
from pathlib import Path

from trio_kubelet.kernel.mountinfo import mount_of, mount_points

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SHARED = 0x100000
_UMOUNT_NOFOLLOW = 0x8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def mount(
    source: str, target: Path, fs_type: str = "", *, flags: int = 0, options: str = ""
) -> None:
    """Make a mount; raises OSError with the target's path."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), fs_type.encode(), flags, options.encode()
    )
    _check(result, target)


def unmount(target: Path) -> None:
    """Take a mount away, never through a symlink; raises OSError, EBUSY while it is in use."""
    _check(_libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW), target)


def make_shared(folder: Path) -> bool:
    """Put a folder on a shared mount, itself, unless it is on one; returns whether it was not.

    Without it no pod sees what is mounted below later (`mountPropagation: HostToContainer`), and
    nobody sees what a pod mounts there (`Bidirectional`). Raises OSError.
    """
    real = folder.resolve()
    below = mount_of(real, mount_points())
    if below is not None and below.is_shared:
        return False
    if below is None or below.path != real:
        mount(str(real), real, flags=MS_BIND)
    mount("", real, flags=MS_SHARED | MS_REC)
    return True


def _check(result: int, target: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


_NOSWAP_SINCE = (6, 4)


def memory_options(size_bytes: int) -> str:
    """Return the mount options of a file system in memory, kept out of the swap if possible."""
    options = f"size={size_bytes}"
    return f"{options},noswap" if keeps_out_of_swap() else options


def keeps_out_of_swap() -> bool:
    """Return whether the kernel can keep a file system in memory out of the swap."""
    return kernel_version(os.uname().release) >= _NOSWAP_SINCE


def mount_memory(folder: Path, size_bytes: int) -> None:
    """Mount a file system in memory. Blocks; raises OSError."""
    mount("tmpfs", folder, "tmpfs", options=memory_options(size_bytes))


def has_own_file_system(folder: Path) -> bool:
    """Return whether another file system than that of its parent is mounted on a folder."""
    return folder.stat().st_dev != folder.parent.stat().st_dev


def kernel_version(release: str) -> tuple[int, int]:
    """Return major and minor of a kernel's release; zeros where it does not begin with them."""
    found = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?", release)
    return (int(found[1]), int(found[2] or 0)) if found is not None else (0, 0)
