"""local: a folder of the node that a persistent volume stands for (API: LocalVolumeSource).

It is bound into the pod's folder. What is in it is never removed: the mount is taken away before
anything is deleted, and only an empty folder is left then. The files are given to the pod's group
before the mount is made, so that a mount says that all is done; where other pods use the volume,
they have been, and it stays with the group that it has.
"""

import os
import stat
from functools import partial
from pathlib import Path

from attrs import field, frozen

from trio_kubelet.k8s import LocalVolumeSource, Pod
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.tasks.keyed_locks import KeyedLocks
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders
from trio_kubelet.volumes.mount import bind_with_options
from trio_kubelet.volumes.ownership import VolumeOwnership
from trio_kubelet.volumes.payload import fs_group
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume


@frozen
class LocalVolume:
    """The plugin for the source `local` of persistent volumes."""

    name = "kubernetes.io/local-volume"

    _folders: PodFolders
    _threads: VolumeThreads
    _ownership: VolumeOwnership
    _recorder: EventRecorder | None = None
    _volumes: KeyedLocks[Path] = field(init=False, factory=KeyedLocks)
    """By the volume's folder: who looks whether others use it has it until its mount is made."""

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Bind the folder; raises VolumeError. A mount that was begun is finished."""
        source = Path(volume.source_as(LocalVolumeSource).path)
        folder = self._folders.volume(pod.metadata.uid, self.name, volume.spec_name)
        mounted = MountedVolume(
            name=volume.name,
            host_path=str(folder),
            read_only=volume.read_only,
            selinux_relabel=True,
        )
        try:
            async with self._volumes.held(source):
                await self._mount(pod, volume, source, folder)
        except (OSError, ValueError) as error:
            raise VolumeError(volume.spec_name, str(error)) from error
        return mounted

    async def _mount(self, pod: Pod, volume: ResolvedVolume, source: Path, folder: Path) -> None:
        """Make the mount, or finish one that a killed agent has made. Raises as `set_up`."""
        share = self._threads.host_paths.share_of(pod.metadata)
        if not await share.run_sync(partial(_is_mount_point, folder)):
            problem = await share.run_sync(partial(_problem, source), abandon_on_cancel=True)
            if problem:
                step = "MountVolume.NewMounter initialization"
                raise VolumeError(volume.spec_name, problem, step)
            await self._give_to_group(pod, volume, source, folder)
        await share.run_sync(partial(_bind, source, folder, volume))

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Do nothing: the mount is gone, and the files are the volume's."""

    async def _give_to_group(
        self, pod: Pod, volume: ResolvedVolume, source: Path, folder: Path
    ) -> None:
        """Give the files to the pod's group, unless another pod has them. Raises OSError."""
        group = fs_group(pod)
        if group is None or volume.read_only:
            return
        share = self._threads.host_paths.share_of(pod.metadata)
        if not await share.run_sync(partial(_is_used_elsewhere, folder)):
            shown = str(folder.relative_to(self._folders.pods))
            await self._ownership.give(pod, source, shown)
            return
        found = (await share.run_sync(partial(os.stat, source))).st_gid
        if found != group and self._recorder is not None:
            self._recorder.pod(
                pod,
                EventType.WARNING,
                "AlreadyMountedVolume",
                f"The requested fsGroup is {group}, but the volume {volume.spec_name} has GID "
                f"{found}. The volume may not be shareable.",
            )


def _problem(source: Path) -> str:
    """Return why a path cannot be a local volume, "" if it can."""
    if not source.is_absolute() or ".." in source.parts:
        return f"local volume path {str(source)!r} must be absolute, without '..'"
    try:
        mode = source.stat().st_mode
    except FileNotFoundError:
        return f'path "{source}" does not exist'
    if stat.S_ISBLK(mode):
        return f'path "{source}" is a block device: this kubelet mounts none yet'
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


def _bind(source: Path, folder: Path, volume: ResolvedVolume) -> None:
    make_folders(folder, FOLDER_MODE)
    bind_with_options(source, folder, volume.mount_options, read_only=volume.read_only)
