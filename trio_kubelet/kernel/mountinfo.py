"""The mounts of the machine: the kernel's own table, /proc/self/mountinfo, as values."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

_MOUNTINFO = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_LEAST_FIELDS = 6
"""Before the dash: numbers of mount and parent, device, root, path, options."""
_DELETED = b"//deleted"
_SHARED = b"shared:"
_ESCAPED = (b" ", b"\t", b"\n", b"\\", b"#")
"""The characters that the kernel writes as numbers."""


@frozen(kw_only=True)
class MountPoint:
    """One line of mountinfo.

    `root` is which part of the file system is mounted (a folder of it for a bind mount);
    `device` is `major:minor`. A later mount on the same path hides the earlier. What is mounted
    or unmounted below a shared mount is so below its peers, too: other mounts of the same
    `peer_group`, here and in other mount namespaces. 0: it is not shared.
    """

    path: Path
    fs_type: str
    root: str = "/"
    source: str = ""
    device: str = ""
    options: tuple[str, ...] = ()
    super_options: tuple[str, ...] = ()
    peer_group: int = 0

    @property
    def is_shared(self) -> bool:
        """True if it may have peers."""
        return self.peer_group != 0


def parse_mountinfo(text: bytes) -> tuple[MountPoint, ...]:
    """Read the format of /proc/<pid>/mountinfo, in the kernel's order (oldest first).

    Lines of any other form are left out.
    """
    return tuple(filter(None, map(_mount_point, text.split(b"\n"))))


def mount_points(inside: Path | None = None) -> tuple[MountPoint, ...]:
    """Read what is mounted in this process's mount namespace.

    With `inside`, lines that do not name that path are not looked at any further: a node has
    thousands of mounts, a pod a few. What is left may still be about other folders.
    """
    text = _MOUNTINFO.read_bytes()
    return parse_mountinfo(text if inside is None else _lines_naming(inside, text))


def _lines_naming(path: Path, text: bytes) -> bytes:
    name = os.fsencode(path)
    if any(special in name for special in _ESCAPED):
        return text
    return b"\n".join(line for line in text.split(b"\n") if name in line)


def mounts_at_or_below(folder: Path, mounts: Iterable[MountPoint]) -> tuple[MountPoint, ...]:
    """Return the mounts on a folder and inside it, in the order to unmount: newest first.

    A mount can only be made inside one that is older, so this is deepest first. The folder's
    path must be free of symlinks, as mountinfo's are.
    """
    inside = [each for each in mounts if each.path == folder or folder in each.path.parents]
    return tuple(reversed(inside))


def is_mounted(path: Path) -> bool:
    """True if something is mounted on a path. Raises OSError.

    Only the folders above it may be symlinks. Blocks.
    """
    real = path.parent.resolve() / path.name
    return any(each.path == real for each in mount_points(real))


def takes_labels(path: Path) -> bool:
    """True if files of what is mounted on a path can have SELinux labels of their own. Blocks.

    Those that were mounted with one label for all (`context=`) cannot. Raises OSError.
    """
    real = path.parent.resolve() / path.name
    found = [each for each in mount_points(real) if each.path == real]
    return bool(found) and "seclabel" in (*found[-1].options, *found[-1].super_options)


def mount_of(folder: Path, mounts: Iterable[MountPoint]) -> MountPoint | None:
    """Return the mount that a folder is on; its path must be free of symlinks."""
    newest_first = reversed(tuple(mounts))
    return next((each for each in newest_first if folder.is_relative_to(each.path)), None)


def _mount_point(line: bytes) -> MountPoint | None:
    # A path may have a carriage return, or any other byte that the kernel does not escape.
    before, _, after = line.partition(b" - ")
    fields = before.split(b" ")
    if len(fields) < _LEAST_FIELDS or not after:
        return None
    _, _, device, root, path, options, *propagation = fields
    fs_type, source, super_options = [*after.split(b" ", 2), b"", b""][:3]
    return MountPoint(
        path=Path(_text(path.removesuffix(_DELETED))),
        root=_text(root),
        device=_text(device),
        options=tuple(_text(options).split(",")),
        fs_type=_text(fs_type),
        source=_text(source),
        super_options=tuple(_text(super_options).split(",")),
        peer_group=_peer_group(propagation),
    )


def _peer_group(propagation: Iterable[bytes]) -> int:
    numbers = (each.removeprefix(_SHARED) for each in propagation if each.startswith(_SHARED))
    return next((int(each) for each in numbers if each.isdigit()), 0)


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), field))
