"""Block devices of the node that persistent volumes of the kind `local` name, as a kind of disks.

They are at the node already: nothing attaches them. What a Go kubelet has mounted is known by its
place, as that has the volume's name.
"""

import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from attrs import frozen

from trio_kubelet.k8s import LocalVolumeSource, Pod
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.disks import AttachedDisk, Others
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.resolved import ResolvedVolume

_MOUNTS = "mounts"
"""The folder below the plugin's in which each volume has its mount point."""


@frozen
class LocalDisks:
    """The kind `local` of disks."""

    name = "kubernetes.io/local-volume"
    is_attached_by_controller = False

    def disk(self, volume: ResolvedVolume) -> AttachedDisk:
        """Return the disk of a volume."""
        return self._disk(volume.spec_name, volume.source_as(LocalVolumeSource).path)

    async def with_what_is_there(
        self, disk: AttachedDisk, _others: Sequence[AttachedDisk], _threads: Share
    ) -> AttachedDisk:
        """Return the disk as it is: it is there before its volumes, and stays."""
        return disk

    async def attach(
        self, _disk: AttachedDisk, _pod: Pod, volume: ResolvedVolume, threads: Share
    ) -> Path:
        """Return the device of the volume. Raises OSError if it is none."""
        device = Path(volume.source_as(LocalVolumeSource).path)
        if not await threads.run_sync(partial(is_device, device)):
            raise OSError(f'path "{device}" is no block device')
        return device

    async def detach(self, disk: AttachedDisk, others: Others, threads: Share) -> None:
        """Do nothing: the disk stays at the node."""

    def device(self, disk: AttachedDisk) -> Path | None:
        """Return the device of a disk. Blocks."""
        device = Path(disk.source["path"])
        return device if is_device(device) else None

    def mounted(self, folders: PodFolders) -> Iterator[tuple[AttachedDisk, Sequence[str]]]:
        """Return the disks that are mounted, and the UIDs of pods that have a folder for them."""
        for mount in _mounts_in(folders.root.joinpath("plugins", self.name, _MOUNTS)):
            disk = self._disk(mount.path.name, mount.source)
            places = ((uid, folders.volume(uid, self.name, disk.volume)) for uid in folders.uids())
            yield disk, [uid for uid, place in places if place.is_dir()]

    def _disk(self, volume: str, path: str) -> AttachedDisk:
        return AttachedDisk(
            plugin=self.name,
            name=volume,
            folder=(_MOUNTS, volume),
            is_block=False,
            volume=volume,
            source={"path": path},
        )


def is_device(path: Path) -> bool:
    """True if a path is that of a block device, or of a symlink to one. Blocks; raises OSError."""
    try:
        return stat.S_ISBLK(path.stat().st_mode)
    except FileNotFoundError:
        return False


def is_mount_of(device: Path, mount_point: Path) -> bool:
    """True if it is the file system of a device that is mounted on a path. Blocks; raises OSError.

    Not by the number that mountinfo shows: that of btrfs is no device's.
    """
    found = [each for each in _mounts_in(mount_point.parent) if each.path.name == mount_point.name]
    source = Path(found[-1].source) if found else None
    return source is not None and source.stat().st_rdev == device.stat().st_rdev


def _mounts_in(folder: Path) -> Sequence[MountPoint]:
    real = folder.resolve()
    return [each for each in mount_points(real) if each.path.parent == real]
