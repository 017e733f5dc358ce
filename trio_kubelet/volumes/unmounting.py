"""Unmounts what is mounted in the folders of pods, and nothing elsewhere.

Many a mount there shows a folder of the machine: a local volume, a subPath of a hostPath, whatever
a driver has bound. On a machine whose mounts are shared it is a peer of the machine's own mount:
what the user mounts on that folder shows up in the pod's, and to unmount it there would be to
unmount the user's. So such a mount leaves its peers first. Everything blocks.
"""

import errno
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from trio_kubelet.kernel.mountinfo import MountPoint, mount_points, mounts_at_or_below
from trio_kubelet.volumes.mount import MS_PRIVATE, mount, unmount
from trio_kubelet.volumes.plugin import VolumeBusy

log = structlog.get_logger("volumes")

_NOT_MOUNTED = frozenset({errno.EINVAL, errno.ENOENT})


def unmount_below(folder: Path, stages: Path) -> None:
    """Unmount all at and below a folder, newest first. Raises VolumeBusy, OSError.

    Only the folders above it may be symlinks: a symlink in its place leads to what others mounted.
    What a pod has mounted in a volume that is staged below `stages` goes from there, too.
    """
    real = folder.parent.resolve() / folder.name
    inside = mounts_at_or_below(real, mount_points(real))
    _leave_peers(inside, real, stages.resolve())
    for each in inside:
        try:
            unmount(each.path)
        except OSError as error:
            if error.errno in _NOT_MOUNTED:
                continue
            raise VolumeBusy(each.path, error.strerror or str(error)) from error
        log.debug("volume unmounted", path=str(each.path))


def _leave_peers(inside: Sequence[MountPoint], folder: Path, stages: Path) -> None:
    """Make mounts private that have others inside of them, and peers elsewhere.

    `inside` are the mounts at and below a folder, newest first. Raises VolumeBusy, OSError.
    """
    covered = tuple(_covered(inside))
    if not covered:
        return
    peers = defaultdict[int, list[MountPoint]](list)
    for other in mount_points():
        peers[other.peer_group].append(other)
    for each, is_hidden in covered:
        elsewhere = [
            _same_folder(each, other)
            for other in peers[each.peer_group]
            if not other.path.is_relative_to(folder) and not other.path.is_relative_to(stages)
        ]
        if not elsewhere:
            continue
        if is_hidden:  # It cannot be made private.
            why = f"what is mounted on it is mounted on {elsewhere[0]}, too: unmount it there"
            raise VolumeBusy(each.path, why)
        mount("", each.path, flags=MS_PRIVATE)


def _covered(inside: Iterable[MountPoint]) -> Iterator[tuple[MountPoint, bool]]:
    """Yield the shared mounts that newer ones are on, and whether one of these hides all of it.

    The mounts come newest first. A pod may have thousands, so none is compared with the others.
    """
    paths, above = set[str](), set[str]()
    for each in inside:
        path = str(each.path)
        if each.is_shared and (path in paths or path in above):
            yield each, path in paths
        paths.add(path)
        above.update(map(str, each.path.parents))


def _same_folder(shown: MountPoint, other: MountPoint) -> Path:
    """Return the path at which another mount of a file system has the folder that one shows."""
    if not Path(shown.root).is_relative_to(other.root):
        return other.path
    return other.path / Path(shown.root).relative_to(other.root)
