"""Disks that the node mounts itself (iscsi, fc, local), as volumes of pods: folders or devices.

A disk is staged for all its pods first (`disk_stages.py`); then it is bound into the pod's folder.
Its files are given to the pod's group before the mount is made, so that a mount says that all is
done.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from attrs import define, field

from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.mountinfo import is_mounted, mount_points
from trio_kubelet.references import ObjectError
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.telemetry import EventRecorder
from trio_kubelet.volumes.back_offs import BackOffs
from trio_kubelet.volumes.devices import map_device, tell_mapped
from trio_kubelet.volumes.disk_stages import DiskStages
from trio_kubelet.volumes.disks import AttachedDisk, DiskKind
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders
from trio_kubelet.volumes.mount import bind_with_options
from trio_kubelet.volumes.ownership import VolumeOwnership
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume

Give = Callable[[Pod, ResolvedVolume, AttachedDisk], Awaitable[MountedVolume]]
"""Brings a disk that is staged into a pod. Raises VolumeError, OSError, ValueError."""


@define(eq=False)
class DiskVolumes:
    """The plugin for one kind of disks."""

    kind: DiskKind
    _stages: DiskStages
    _folders: PodFolders
    _threads: VolumeThreads
    _ownership: VolumeOwnership
    _privileged: bool
    _recorder: EventRecorder | None = None
    _back_offs: BackOffs = field(init=False, factory=BackOffs)

    @property
    def name(self) -> str:
        """The name of the kind."""
        return self.kind.name

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Have the disk at the node and in the pod. Raises VolumeError, VolumeBackOff.

        Raises UnattachedVolumeError, too. Cancelled, the pod stays a user of the disk.
        """
        return await self.stage(pod, volume, self._map if volume.is_block else self._bind)

    async def stage(self, pod: Pod, volume: ResolvedVolume, give: Give) -> MountedVolume:
        """Have the disk at the node, and `give` it to the pod. Raises as `set_up`."""
        uid, step = (
            pod.metadata.uid,
            "MapVolume.SetUpDevice" if volume.is_block else "MountVolume.SetUp",
        )
        key = uid, volume.spec_name
        self._back_offs.check(key)
        try:
            if not self._privileged:
                raise PermissionError("this agent is not allowed to mount file systems")
            disk = self.kind.disk(volume)
            stage = self._stages.stage(disk)
            threads = self._threads.preparing.share_of(pod.metadata)
            self._stages.volumes.require_room(pod, volume, stage)
            # It is first: a disk that no pod is known to use is detached.
            await threads.run_sync(partial(self._stages.records.use, uid, disk))
            await self._stages.volumes.stage(pod, volume, stage)
            mounted = await give(pod, volume, disk)
            self._stages.volumes.hold(uid, stage)
        except VolumeError as error:
            raise self._back_offs.failed(key, error) from error
        except (OSError, ObjectError, ValueError) as error:
            problem = VolumeError(volume.spec_name, str(error), step)
            raise self._back_offs.failed(key, problem) from error
        self._back_offs.succeeded(key)
        return mounted

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Do nothing: the mount is gone, and the files are the volume's."""

    async def forget(self, pod_uid: str, threads: Share) -> None:
        """A pod has nothing of a disk mounted or mapped any more. Raises OSError."""
        await threads.run_sync(partial(self._stages.records.unuse_all, pod_uid, self.name))

    def release(self, pod_uid: str) -> None:
        """A pod has no volumes any more, not even such as were to be mounted."""
        self._back_offs.forget(pod_uid)
        self._stages.volumes.release(pod_uid)

    async def _map(self, pod: Pod, volume: ResolvedVolume, disk: AttachedDisk) -> MountedVolume:
        """Give the pod the device. Raises OSError."""
        uid, name = pod.metadata.uid, volume.spec_name
        device = await self._stages.device(pod, disk)
        if device is None:
            raise FileNotFoundError(f"the device of {disk.unique_name} is gone")
        link = self._folders.device(uid, self.name, name)
        users = self._folders.device_users(self.name, name)
        threads = self._threads.host_paths.share_of(pod.metadata)
        is_new = await threads.run_sync(partial(map_device, device, link, users / uid))
        if is_new and self._recorder is not None:
            tell_mapped(self._recorder, pod, name, users, link)
        return MountedVolume(name=volume.name, device=str(link), read_only=volume.read_only)

    async def _bind(self, pod: Pod, volume: ResolvedVolume, disk: AttachedDisk) -> MountedVolume:
        """Bind the file system into the pod's folder. Raises OSError, ValueError."""
        staged = disk.mount_point(self._folders.root)
        folder = self._folders.volume(pod.metadata.uid, self.name, volume.spec_name)
        threads = self._threads.preparing.share_of(pod.metadata)
        await threads.run_sync(partial(make_folders, folder, FOLDER_MODE))
        if not await threads.run_sync(partial(is_mounted, folder)):
            only_read = await threads.run_sync(partial(is_read_only, staged))
            if not volume.read_only and not only_read:
                await self._ownership.give(pod, staged, volume.spec_name)
        bind = partial(bind_with_options, staged, folder, (), read_only=volume.read_only)
        await threads.run_sync(bind)
        return MountedVolume(
            name=volume.name,
            host_path=str(folder),
            read_only=volume.read_only,
            selinux_relabel=True,
        )


def is_read_only(path: Path) -> bool:
    """True if what is mounted on a path cannot be written to. Blocks."""
    real = path.parent.resolve() / path.name
    return any(
        "ro" in (*each.options, *each.super_options)
        for each in mount_points(real)
        if each.path == real
    )
