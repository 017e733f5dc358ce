"""Mounts and unmounts: the system calls, and file systems in memory.

The calls go straight to libc: no `mount` binary is needed, nothing canonicalizes a path on the
way, and a failure is an OSError with its number. They block, so they belong into a thread.
"""

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from trio_kubelet.kernel.mountinfo import MountPoint, mount_of, mount_points

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT = 0x20
MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 0x400, 0x800, 0x200000
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


_FLAGS: Mapping[str, int] = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "noatime": MS_NOATIME,
    "nodiratime": MS_NODIRATIME,
    "relatime": MS_RELATIME,
}
"""The options that a mount has for itself, whatever the file system on it has."""
_OPPOSITES: Mapping[str, int] = {
    "rw": MS_RDONLY,
    "suid": MS_NOSUID,
    "dev": MS_NODEV,
    "exec": MS_NOEXEC,
    "atime": MS_NOATIME,
    "diratime": MS_NODIRATIME,
    "norelatime": MS_RELATIME,
}
_WITHOUT_MEANING = frozenset({"bind", "defaults", "_netdev", "auto", "noauto", "nofail"})
"""For a bind mount that is made now."""


def bind_flags(options: Iterable[str], inherited: int = 0) -> int:
    """Return the flags of a bind mount with these options, the last of two opposites counts.

    Raises ValueError for an option that only a file system can have.
    """
    flags = inherited
    for option in options:
        if option in _FLAGS:
            flags |= _FLAGS[option]
        elif option in _OPPOSITES:
            flags &= ~_OPPOSITES[option]
        elif option not in _WITHOUT_MEANING:
            raise ValueError(f'mount option "{option}" cannot be given to a bind mount')
    return flags


def bind_with_options(
    source: Path, target: Path, options: Iterable[str], *, read_only: bool
) -> None:
    """Bind a folder to another place, unless something is mounted there, and see to its options.

    The options of the mount that the folder is on count as well. Raises OSError, and ValueError
    for an option that a bind mount cannot have; then nothing is mounted.
    """
    wanted = (*options, "ro") if read_only else tuple(options)
    bind_flags(wanted)
    real = target.resolve()
    if _newest_mount_on(real) is None:
        mount(str(source), target, flags=MS_BIND)
    present = _newest_mount_on(real)
    options_now = present.options if present is not None else ()
    flags_now = bind_flags(each for each in options_now if each in _FLAGS)
    flags = bind_flags(wanted, flags_now)
    if flags != flags_now:
        mount("", target, flags=MS_BIND | MS_REMOUNT | flags)


def _newest_mount_on(real: Path) -> MountPoint | None:
    return next((each for each in reversed(mount_points(real)) if each.path == real), None)


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
_UID_MAP = Path("/proc/self/uid_map")
_ALL_IDS = ["0", "0", "4294967295"]


def memory_options(size_bytes: int) -> str:
    """Return the mount options of a file system in memory, kept out of the swap if possible."""
    options = f"size={size_bytes}"
    return f"{options},noswap" if keeps_out_of_swap() else options


def keeps_out_of_swap() -> bool:
    """Return whether the kernel can keep a file system in memory out of the swap.

    It refuses that to an agent in a user namespace (EINVAL). Raises OSError.
    """
    if kernel_version(os.uname().release) < _NOSWAP_SINCE:
        return False
    try:
        return _UID_MAP.read_text().split() == _ALL_IDS
    except FileNotFoundError:  # A kernel without user namespaces.
        return True


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
