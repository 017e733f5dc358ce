"""local: a folder or a block device of the node, for a persistent volume (API: LocalVolumeSource).

A device is mounted for all pods first (`disk_stages.py`, `local_disks.py`). The folder, or that
mount, is bound into the pod's folder. What is in it is never removed: the mount is taken away
before anything is deleted, and only an empty folder is left then. The files are given to the pod's
group before the mount is made, so that a mount says that all is done; where other pods use the
volume, they have been, and it stays with the group that it has.
"""

import os
import stat
from functools import partial
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.k8s import LocalVolumeSource, Pod
from trio_kubelet.kernel.mountinfo import is_mounted, mount_points
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.tasks.keyed_locks import KeyedLocks
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.disk_volume import DiskVolumes, is_read_only
from trio_kubelet.volumes.disks import AttachedDisk
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders
from trio_kubelet.volumes.local_disks import LocalDisks, is_device, is_mount_of
from trio_kubelet.volumes.mount import bind_with_options
from trio_kubelet.volumes.ownership import VolumeOwnership
from trio_kubelet.volumes.payload import fs_group
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume


@frozen(kw_only=True)
class _Origin:
    """The path that is bound into the pod's folder, and its device if it is a device's mount."""

    path: Path
    options: tuple[str, ...] = ()
    """Of the bind mount; a device was mounted with those of its volume."""
    device: Path | None = None


@frozen
class LocalVolume:
    """The plugin for the source `local` of persistent volumes."""

    name = LocalDisks.name

    _folders: PodFolders
    _threads: VolumeThreads
    _ownership: VolumeOwnership
    _recorder: EventRecorder | None = None
    _disks: DiskVolumes | None = None
    """For devices; None: this node mounts none."""
    _volumes: KeyedLocks[Path] = field(init=False, factory=KeyedLocks)
    """By what is bound: who looks whether others use it has it until its mount is made."""

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Bind the folder, or mount and bind the device. Raises VolumeError, VolumeBackOff.

        A mount that was begun is finished.
        """
        source = Path(volume.source_as(LocalVolumeSource).path)
        try:
            if self._disks is not None and await self._is_disk(pod, volume, self._disks):
                return await self._disks.stage(pod, volume, self._bind_disk)
            return await self._bind(pod, volume, _Origin(path=source, options=volume.mount_options))
        except (OSError, ValueError) as error:
            raise VolumeError(volume.spec_name, str(error)) from error

    async def _is_disk(self, pod: Pod, volume: ResolvedVolume, disks: DiskVolumes) -> bool:
        """True if a volume is a device, or was when it was mounted. Raises OSError, ValueError."""
        source = Path(volume.source_as(LocalVolumeSource).path)
        mount_point = disks.kind.disk(volume).mount_point(self._folders.root)
        folder = self._folders.volume(pod.metadata.uid, self.name, volume.spec_name)
        share = self._threads.host_paths.share_of(pod.metadata)
        look = partial(_is_disk, source, mount_point, folder)
        return await share.run_sync(look, abandon_on_cancel=True)

    async def _bind_disk(
        self, pod: Pod, volume: ResolvedVolume, disk: AttachedDisk
    ) -> MountedVolume:
        """Bind the file system of a device that is mounted. Raises as `_bind`."""
        device = Path(volume.source_as(LocalVolumeSource).path)
        staged = disk.mount_point(self._folders.root)
        return await self._bind(pod, volume, _Origin(path=staged, device=device))

    async def _bind(self, pod: Pod, volume: ResolvedVolume, origin: _Origin) -> MountedVolume:
        """Have the mount in the pod's folder. Raises VolumeError, OSError, ValueError."""
        folder = self._folders.volume(pod.metadata.uid, self.name, volume.spec_name)
        async with self._volumes.held(origin.path):
            await self._mount(pod, volume, origin, folder)
        return MountedVolume(
            name=volume.name,
            host_path=str(folder),
            read_only=volume.read_only,
            selinux_relabel=True,
        )

    async def _mount(self, pod: Pod, volume: ResolvedVolume, origin: _Origin, folder: Path) -> None:
        """Make the mount, or finish one that a killed agent has made. Raises as `_bind`."""
        share = self._threads.host_paths.share_of(pod.metadata)
        if not await share.run_sync(partial(_is_mount_point, folder)):
            problem = await share.run_sync(partial(_problem, origin), abandon_on_cancel=True)
            if problem:
                step = "MountVolume.NewMounter initialization"
                raise VolumeError(volume.spec_name, problem, step)
            await self._give_to_group(pod, volume, origin, folder)
        await share.run_sync(partial(_make_bind, origin, folder, read_only=volume.read_only))

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Do nothing: the mount is gone, and the files are the volume's."""

    async def _give_to_group(
        self, pod: Pod, volume: ResolvedVolume, origin: _Origin, folder: Path
    ) -> None:
        """Give the files to the pod's group, unless another pod has them. Raises OSError."""
        group = fs_group(pod)
        if group is None or volume.read_only:
            return
        share = self._threads.host_paths.share_of(pod.metadata)
        if origin.device is not None and await share.run_sync(partial(is_read_only, origin.path)):
            return
        if not await share.run_sync(partial(_is_used_elsewhere, folder)):
            shown = str(folder.relative_to(self._folders.pods))
            await self._ownership.give(pod, origin.path, shown)
            return
        found = (await share.run_sync(partial(os.stat, origin.path))).st_gid
        if found != group and self._recorder is not None:
            self._recorder.pod(
                pod,
                EventType.WARNING,
                "AlreadyMountedVolume",
                f"The requested fsGroup is {group}, but the volume {volume.spec_name} has GID "
                f"{found}. The volume may not be shareable.",
            )


def _is_disk(source: Path, mount_point: Path, folder: Path) -> bool:
    """True if a path is a device. One that is mounted is not looked at: it may hang, or be gone."""
    if is_mounted(mount_point):
        return True
    return not _is_mount_point(folder) and _is_proper(source) and is_device(source)


def _is_proper(source: Path) -> bool:
    return source.is_absolute() and ".." not in source.parts


def _problem(origin: _Origin) -> str:
    """Return why a pod cannot have a local volume, "" if it can."""
    if origin.device is not None:
        # A volume of the same name may have been another device, and not be unmounted yet.
        if is_mount_of(origin.device, origin.path):
            return ""
        return f'what is mounted on "{origin.path}" is not the device "{origin.device}"'
    source = origin.path
    if not _is_proper(source):
        return f"local volume path {str(source)!r} must be absolute, without '..'"
    try:
        mode = source.stat().st_mode
    except FileNotFoundError:
        return f'path "{source}" does not exist'
    if stat.S_ISBLK(mode):
        return f'path "{source}" is a block device, and this node mounts none'
    return "" if stat.S_ISDIR(mode) else "only directory and block device are supported"


def _is_mount_point(folder: Path) -> bool:
    real = folder.resolve()
    return any(each.path == real for each in mount_points(real))


def _is_used_elsewhere(folder: Path) -> bool:
    """True if the volume of a pod's folder is mounted for another pod of this node, too."""
    real = folder.parent.resolve() / folder.name
    plugin, name = real.parts[-2:]
    others = mount_points(Path(plugin) / name)
    return any(each.path.parts[-2:] == (plugin, name) and each.path != real for each in others)


def _make_bind(origin: _Origin, folder: Path, *, read_only: bool) -> None:
    make_folders(folder, FOLDER_MODE)
    bind_with_options(origin.path, folder, origin.options, read_only=read_only)
