"""The volumes of pods: prepared side by side before the containers, removed after them.

Nothing is remembered: what is prepared is read off the disk and the mount table, so a restarted
agent goes on where the last one stopped. Removal has drivers take their mounts away, unmounts
everything else of the pod, newest first, and only then deletes, file system by file system, so that
a mount that is still there keeps its content. Where a mount does not go, as its driver is away, the
volumes with files of the pod's own are removed nevertheless, each by itself: disk and memory that
they take are wanted back.

A subPath is one file or folder inside a volume, mounted as if it were the volume. What is inside
may be the work of a container, symlinks included. So the path is resolved by the kernel beneath
the volume, and the very file that was found is bound to a place under `volume-subpaths`: the
runtime mounts that, and nothing can be swapped in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from attrs import evolve, field, frozen

from trio_kubelet.errors import without_frames
from trio_kubelet.k8s import Pod, Volume
from trio_kubelet.tasks.concurrency import Work, run_all, run_all_for_each, run_for_each
from trio_kubelet.tasks.fair_limiter import ALL_PODS, Share
from trio_kubelet.volumes.configuration import KINDS
from trio_kubelet.volumes.csi_places import Published
from trio_kubelet.volumes.csi_records import is_readable
from trio_kubelet.volumes.csi_stages import CSIStages
from trio_kubelet.volumes.csi_volume import CSIVolumes
from trio_kubelet.volumes.devices import unmap_devices
from trio_kubelet.volumes.disk_volume import DiskVolumes
from trio_kubelet.volumes.empty_dir import EmptyDir
from trio_kubelet.volumes.flex_volume import FlexVolumes
from trio_kubelet.volumes.folders import PodFolders, plugin_folder
from trio_kubelet.volumes.nfs import NFSVolume
from trio_kubelet.volumes.operations import VolumeOperations
from trio_kubelet.volumes.plugin import (
    VOLUMES_AT_ONCE,
    MountedVolume,
    Problem,
    VolumeBackOff,
    VolumeBusy,
    VolumeError,
    VolumePlugin,
    VolumesNotReady,
    VolumeThreads,
)
from trio_kubelet.volumes.resolved import ResolvedVolume, UnresolvedVolumeError
from trio_kubelet.volumes.resolver import VolumeResolver
from trio_kubelet.volumes.safe_open import remove_in_pieces, remove_tree
from trio_kubelet.volumes.sub_paths import bind_sub_path
from trio_kubelet.volumes.unmounting import unmount_below

log = structlog.get_logger("volumes")

T = TypeVar("T")

EPHEMERAL_PLUGINS = (EmptyDir.name, *(kind.name for kind in KINDS.values()))
"""The plugins whose files are the pod's own: they count as its use of the node's disk, and are
removed with their volume."""

_EPHEMERAL_FOLDERS = frozenset(map(plugin_folder, EPHEMERAL_PLUGINS))

_FILE_MODE = 0o640


@frozen
class Volumes:
    """Prepares and removes the volumes of pods.

    `plugins` maps the field that a source stands in (`empty_dir`), of a pod or of a persistent
    volume, to its plugin. Every method that touches the disk does so in one of the `threads`.
    The drivers of `csi` and `flex` take their mounts away themselves; `nfs` has programs for that.
    """

    _folders: PodFolders
    _resolver: VolumeResolver
    _plugins: Mapping[str, VolumePlugin]
    _threads: VolumeThreads
    _device_plugins: Mapping[str, VolumePlugin] = field(factory=dict)
    """For volumes of the mode Block."""
    _csi: CSIVolumes | None = None
    _flex: FlexVolumes | None = None
    _nfs: NFSVolume | None = None
    _disks: Sequence[DiskVolumes] = ()
    operations: VolumeOperations = field(factory=VolumeOperations)

    def with_csi(self, stages: CSIStages) -> "Volumes":
        """Return the same with volumes of CSI drivers."""
        csi = CSIVolumes(stages, self._threads)
        return evolve(
            self,
            plugins={**self._plugins, "csi": csi},
            device_plugins={**self._device_plugins, "csi": csi},
            csi=csi,
            operations=stages.parts.operations,
        )

    async def prepare(self, pod: Pod) -> Mapping[str, MountedVolume]:
        """Make the pod's folders and prepare its volumes; return them by name.

        Volumes that no container mounts are left out, as in the Go kubelet. Raises
        VolumesNotReady after all were tried. Cancelled or failed, it may be called again;
        `tear_down` removes what it did.
        """
        create = partial(self._folders.create, pod.metadata.uid)
        await self._threads.preparing.share_of(pod.metadata).run_sync(create)
        used = _used_volumes(pod)
        mounted: dict[str, MountedVolume] = {}
        problems: dict[str, Problem] = {}

        async def prepare_one(volume: Volume) -> None:
            try:
                resolved = await self._resolver.resolve(pod, volume)
                mounted[volume.name] = await self._set_up(pod, resolved)
            except (VolumeError, UnresolvedVolumeError, VolumeBackOff) as problem:
                problems[volume.name] = without_frames(problem)

        wanted = [volume for volume in pod.spec.volumes if volume.name in used]
        await run_for_each(wanted, prepare_one, min(len(wanted), VOLUMES_AT_ONCE))
        if problems:
            raise VolumesNotReady({v.name: problems[v.name] for v in wanted if v.name in problems})
        return mounted

    async def _set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Prepare one volume, and tell of it. Raises VolumeError, VolumeBackOff."""
        plugin = self._plugin(volume)
        is_of_driver = isinstance(plugin, CSIVolumes)
        name = plugin.shown_plugin(volume) if isinstance(plugin, CSIVolumes) else plugin.name
        with self.operations.mounting(
            pod.metadata.uid, volume, name, is_renewed=volume.kind in KINDS, tells=is_of_driver
        ):
            return await plugin.set_up(pod, volume)

    async def bind_sub_path(
        self, pod: Pod, volume: MountedVolume, container: str, index: int, sub_path: str
    ) -> str:
        """Return the path on the node of one subPath of a volume, for one container.

        `index` is that of the mount in the container's `volumeMounts`. Raises VolumeError, also
        for a path that leads out of the volume.
        """
        target = self._folders.sub_path(pod.metadata.uid, volume.name, container, index)
        source = Path(volume.host_path)
        threads = self._threads_for(pod, source)
        try:
            await bind_sub_path(threads, source, sub_path, target)
        except (OSError, ValueError) as error:
            raise VolumeError(volume.name, f"failed to prepare subPath: {error}") from error
        return str(target)

    async def tear_down(self, pod_uid: str, namespace: str = "") -> None:
        """Unmount and remove all volumes of a pod, known or not; its other files stay.

        A pod without any is fine, and so is one whose namespace is not known: such pods share
        their threads. Raises VolumeBusy where something cannot be unmounted, OSError where
        something cannot be deleted: that stays, and the volumes with files of the pod's own go.
        """
        threads = self._threads.removing.share(namespace, pod_uid)
        with self.operations.unmounting(pod_uid):
            await self._remove(pod_uid, threads)
        self._resolver.forget(pod_uid)
        if self._csi is not None:
            self._csi.release(pod_uid)
        if self._flex is not None:
            self._flex.release(pod_uid)
        for disks in self._disks:
            disks.release(pod_uid)

    async def _remove(self, pod_uid: str, threads: Share) -> None:
        """Unmount and remove a pod's volumes. Raises as `tear_down`."""
        try:
            await self._unmount(pod_uid, threads)
        except (VolumeBusy, OSError):
            # One error is told of; the next try comes to those of other volumes again.
            with suppress(VolumeBusy, OSError):
                await self._remove_own(pod_uid, threads)
            raise
        folders = await threads.run_sync(partial(self._volume_folders, pod_uid))
        remove = partial(self._tear_down_one, pod_uid, threads)
        await run_all_for_each(folders, remove, 1)
        await threads.run_sync(partial(self._remove_empty, pod_uid))

    async def _unmount(self, pod_uid: str, threads: Share) -> None:
        """Have all volumes of a pod unmounted. Raises VolumeBusy, OSError.

        Drivers do not wait for each other; nobody else takes away what one of them has left.
        """
        await threads.run_sync(partial(self._unmount_below, self._folders.sub_paths(pod_uid)))
        drivers: list[Work] = []
        if self._csi is not None:
            drivers.append(partial(self._unpublish, self._csi, pod_uid, threads))
        if self._flex is not None:
            drivers.append(partial(self._flex.unmount, pod_uid, threads))
        if self._nfs is not None:
            drivers.append(partial(self._nfs.unmount, pod_uid, threads))
        await run_all(*drivers)
        await threads.run_sync(partial(self._unmount_below, self._folders.pod(pod_uid)))
        await threads.run_sync(partial(unmap_devices, self._folders, pod_uid))
        for disks in self._disks:
            await disks.forget(pod_uid, threads)

    async def _remove_own(self, pod_uid: str, threads: Share) -> None:
        """Unmount and remove the volumes with files of the pod's own, each by itself.

        One with a mount that does not go stays. Raises VolumeBusy, OSError, after all were tried.
        """
        sub_paths = self._folders.sub_paths(pod_uid)

        async def remove(folder: Path) -> None:
            if folder.parent.name in _EPHEMERAL_FOLDERS:
                for each in (sub_paths / folder.name, folder):
                    await threads.run_sync(partial(self._unmount_below, each))
                await self._tear_down_one(pod_uid, threads, folder)

        folders = await threads.run_sync(partial(self._volume_folders, pod_uid))
        await run_all_for_each(folders, remove, 1)

    async def _tear_down_one(self, pod_uid: str, threads: Share, folder: Path) -> None:
        """Remove what is left of a volume that is unmounted. Raises OSError."""
        for plugin in self._plugins.values():
            if plugin_folder(plugin.name) == folder.parent.name:
                if plugin is not self._csi:
                    self.operations.left(pod_uid, plugin.name, folder.name)
                await plugin.tear_down(pod_uid, folder, threads)
                break
        await threads.run_sync(partial(_remove_volume, folder))

    async def remove_pod(self, pod_uid: str, namespace: str = "") -> None:
        """Remove the volumes of a pod and then its whole folder. Raises as `tear_down`."""
        await self.tear_down(pod_uid, namespace)
        threads = self._threads.removing.share(namespace, pod_uid)
        await remove_in_pieces(threads, self._folders.pod(pod_uid))

    async def tell_found(self) -> None:
        """Tell of the volumes that an earlier agent has left in the folders of pods."""
        look = partial(_found, self._folders)
        self.operations.on_found.call(*await self._threads.listing.share(ALL_PODS).run_sync(look))

    async def pods_on_disk(self) -> frozenset[str]:
        """Return the UIDs of all pods that have a folder, for housekeeping to compare."""
        return await self._threads.listing.share(ALL_PODS).run_sync(self._folders.uids)

    def _plugin(self, volume: ResolvedVolume) -> VolumePlugin:
        plugins = self._device_plugins if volume.is_block else self._plugins
        if volume.kind in plugins:
            return plugins[volume.kind]
        what = f"volumes of the kind {volume.wire_kind}"
        step = "MountVolume.SetUp"
        if volume.is_block:
            what, step = f"devices of {what}", "MapVolume.FindMapperPluginBySpec"
        why = f"no volume plugin matched: this kubelet has no {what}"
        raise VolumeError(volume.spec_name, why, step)

    async def _unpublish(self, csi: CSIVolumes, pod_uid: str, threads: Share) -> None:
        """Have drivers take their mounts away, before anything else of them is unmounted."""
        places = await csi.published(pod_uid, threads)

        async def unpublish(place: Published) -> None:
            await csi.unpublish(pod_uid, place, threads)

        await run_all_for_each(places, unpublish, VOLUMES_AT_ONCE)

    def _unmount_below(self, folder: Path) -> None:
        unmount_below(folder, self._folders.plugins)

    def _volume_folders(self, pod_uid: str) -> tuple[Path, ...]:
        volumes = self._folders.volumes(pod_uid)
        return tuple(folder for plugin in _folders_in(volumes) for folder in _entries(plugin))

    def _remove_empty(self, pod_uid: str) -> None:
        """Remove the folders of plugins, which are empty now, and the places of subPaths."""
        for plugin in _folders_in(self._folders.volumes(pod_uid)):
            plugin.rmdir()
        if self._folders.sub_paths(pod_uid).exists():
            remove_tree(self._folders.sub_paths(pod_uid))

    def _threads_for(self, pod: Pod, path: Path) -> Share:
        """Return the pod's share of the threads for a path.

        Those of the node may hang, and so may what others have mounted in the pod's folder.
        """
        volumes = self._folders.volumes(pod.metadata.uid)
        is_own = any(path.is_relative_to(volumes / each) for each in _EPHEMERAL_FOLDERS)
        threads = self._threads.preparing if is_own else self._threads.host_paths
        return threads.share_of(pod.metadata)


def _found(folders: PodFolders) -> tuple[int, int]:
    """Return the number of volumes in the folders of pods, and of those without a clear record."""
    all_there_are = unreadable = 0
    for uid in folders.uids():
        for plugin in _folders_in(folders.volumes(uid)):
            volumes = _entries(plugin)
            all_there_are += len(volumes)
            if plugin.name == plugin_folder(CSIVolumes.name):
                unreadable += sum(not is_readable(each) for each in volumes)
        for plugin in _folders_in(folders.devices(uid)):
            all_there_are += len(_entries(plugin))
    return all_there_are, unreadable


def _used_volumes(pod: Pod) -> frozenset[str]:
    used: set[str] = set()
    for container in pod.spec.all_containers:
        used.update(mount.name for mount in container.volume_mounts)
        used.update(device.name for device in container.volume_devices)
    return frozenset(used)


def _remove_volume(folder: Path) -> None:
    """Remove what is left of a volume; with content only where the agent itself put it there."""
    if folder.parent.name in _EPHEMERAL_FOLDERS:
        remove_tree(folder)
    elif folder.is_dir() and not folder.is_symlink():
        folder.rmdir()


def _folders_in(folder: Path) -> Iterator[Path]:
    return (each for each in _entries(folder) if each.is_dir() and not each.is_symlink())


def _entries(folder: Path) -> tuple[Path, ...]:
    try:
        return tuple(folder.iterdir())
    except FileNotFoundError:
        return ()
