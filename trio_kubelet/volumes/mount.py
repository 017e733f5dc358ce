"""Mounts: the system calls, and what the kernel says is mounted.

The calls go straight to libc: no `mount` binary is needed, nothing canonicalizes a path on the
way, and a failure is an OSError with its number. They block, so they belong into a thread.
"""

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
_UMOUNT_NOFOLLOW = 0x8

_MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_DELETED = b"//deleted"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


@frozen(kw_only=True)
class MountPoint:
    """One line of mountinfo.

    `root` is which part of the file system is mounted (a folder of it for a bind mount);
    `device` is `major:minor`. A later mount on the same path hides the earlier.
    """

    path: Path
    fs_type: str
    root: str = "/"
    source: str = ""
    device: str = ""
    options: tuple[str, ...] = ()
    super_options: tuple[str, ...] = ()


def parse_mountinfo(text: bytes) -> tuple[MountPoint, ...]:
    """Read the format of /proc/<pid>/mountinfo, in the kernel's order (oldest first)."""
    return tuple(_mount_point(line) for line in text.splitlines() if line)


def mount_points() -> tuple[MountPoint, ...]:
    """Read what is mounted in this process's mount namespace."""
    return parse_mountinfo(_MOUNTINFO.read_bytes())


def mounts_at_or_below(folder: Path, mounts: Iterable[MountPoint]) -> tuple[MountPoint, ...]:
    """Return the mounts on a folder and inside it, in the order to unmount: newest first.

    A mount can only be made inside one that is older, so this is deepest first. The folder's
    path must be free of symlinks, as mountinfo's are.
    """
    inside = [each for each in mounts if each.path == folder or folder in each.path.parents]
    return tuple(reversed(inside))


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


def _check(result: int, target: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _mount_point(line: bytes) -> MountPoint:
    before, _, after = line.partition(b" - ")
    _, _, device, root, path, options, *_ = before.split(b" ")
    fs_type, source, super_options = [*after.split(b" ", 2), b"", b""][:3]
    return MountPoint(
        path=Path(_text(path.removesuffix(_DELETED))),
        root=_text(root),
        device=device.decode(),
        options=tuple(_text(options).split(",")),
        fs_type=_text(fs_type),
        source=_text(source),
        super_options=tuple(_text(super_options).split(",")),
    )


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), field))
