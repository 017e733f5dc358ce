"""The volumes of pods: prepared side by side before the containers, removed after them.

Nothing is remembered: what is prepared is read off the disk and the mount table, so a restarted
agent goes on where the last one stopped. Removal unmounts everything of the pod, newest first,
and only then deletes, file system by file system, so that a mount that is still there keeps its
content.
"""

import errno
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from attrs import fields, frozen

from trio_kubelet.k8s import Pod, Volume
from trio_kubelet.k8s.base import wire_name
from trio_kubelet.kernel.mountinfo import mount_points, mounts_at_or_below
from trio_kubelet.tasks.concurrency import run_for_each
from trio_kubelet.tasks.fair_limiter import ALL_PODS, Share
from trio_kubelet.volumes.folders import PodFolders, plugin_folder
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.plugin import (
    VOLUMES_AT_ONCE,
    MountedVolume,
    VolumeBusy,
    VolumeError,
    VolumePlugin,
    VolumesNotReady,
    VolumeThreads,
)
from trio_kubelet.volumes.safe_open import remove_in_pieces, remove_tree
from trio_kubelet.volumes.sub_path import bind_sub_path

log = structlog.get_logger("volumes")

T = TypeVar("T")

_NOT_MOUNTED = frozenset({errno.EINVAL, errno.ENOENT})

_KEPT_ON_DISK = tuple(
    plugin_folder(f"kubernetes.io/{name}")
    for name in ("empty-dir", "configmap", "downward-api", "projected", "secret")
)
"""Plugins whose folders hold nothing but the pod's own copy: they may be deleted with content."""


@frozen
class Volumes:
    """Prepares and removes the volumes of pods.

    `plugins` maps the field of `Volume` (`empty_dir`) to its plugin. Every method that touches
    the disk does so in one of the `threads`.
    """

    _folders: PodFolders
    _plugins: Mapping[str, VolumePlugin]
    _threads: VolumeThreads

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
        errors: dict[str, VolumeError] = {}

        async def prepare_one(volume: Volume) -> None:
            try:
                mounted[volume.name] = await self._plugin(volume).set_up(pod, volume)
            except VolumeError as error:
                errors[volume.name] = error

        wanted = [volume for volume in pod.spec.volumes if volume.name in used]
        await run_for_each(wanted, prepare_one, min(len(wanted), VOLUMES_AT_ONCE))
        if errors:
            in_order = (errors[v.name] for v in pod.spec.volumes if v.name in errors)
            raise VolumesNotReady(tuple(in_order))
        return mounted

    async def bind_sub_path(
        self, pod: Pod, volume: MountedVolume, container: str, index: int, sub_path: str
    ) -> str:
        """Return the path on the node of one subPath of a volume, for one container.

        `index` is that of the mount in the container's `volumeMounts`. Raises VolumeError, also
        for a path that leads out of the volume.
        """
        target = self._folders.sub_path(pod.metadata.uid, volume.name, container, index)
        source = Path(volume.host_path)
        bind = partial(bind_sub_path, source, sub_path, target)
        try:
            await self._threads_for(pod, source).run_sync(bind)
        except (OSError, ValueError) as error:
            raise VolumeError(volume.name, f"failed to prepare subPath: {error}") from error
        return str(target)

    async def tear_down(self, pod_uid: str, namespace: str = "") -> None:
        """Unmount and remove all volumes of a pod, known or not; its other files stay.

        A pod without any is fine, and so is one whose namespace is not known: such pods share
        their threads. Raises VolumeBusy where something cannot be unmounted, then nothing was
        deleted; OSError where something cannot be deleted.
        """
        threads = self._threads.removing.share(namespace, pod_uid)
        await threads.run_sync(partial(self._unmount, pod_uid))
        for folder in await threads.run_sync(partial(self._volume_folders, pod_uid)):
            plugin = self._plugin_of(folder)
            if plugin is not None:
                await plugin.tear_down(pod_uid, folder, threads)
            await threads.run_sync(partial(_remove_volume, folder))
        await threads.run_sync(partial(self._remove_empty, pod_uid))

    async def remove_pod(self, pod_uid: str, namespace: str = "") -> None:
        """Remove the volumes of a pod and then its whole folder. Raises as `tear_down`."""
        await self.tear_down(pod_uid, namespace)
        threads = self._threads.removing.share(namespace, pod_uid)
        await remove_in_pieces(threads, self._folders.pod(pod_uid))

    async def pods_on_disk(self) -> frozenset[str]:
        """Return the UIDs of all pods that have a folder, for housekeeping to compare."""
        return await self._threads.listing.share(ALL_PODS).run_sync(self._folders.uids)

    def _plugin(self, volume: Volume) -> VolumePlugin:
        for attribute in fields(Volume):
            if attribute.name != "name" and getattr(volume, attribute.name) is not None:
                if attribute.name in self._plugins:
                    return self._plugins[attribute.name]
                kind = wire_name(attribute)
                why = f"no volume plugin matched: this kubelet has no volumes of the kind {kind}"
                raise VolumeError(volume.name, why)
        raise VolumeError(volume.name, "it has no source")

    def _plugin_of(self, folder: Path) -> VolumePlugin | None:
        named = (p for p in self._plugins.values() if plugin_folder(p.name) == folder.parent.name)
        return next(named, None)

    def _unmount(self, pod_uid: str) -> None:
        pod = self._folders.pod(pod_uid).resolve()
        for each in mounts_at_or_below(pod, mount_points(pod)):
            try:
                unmount(each.path)
            except OSError as error:
                if error.errno in _NOT_MOUNTED:
                    continue
                raise VolumeBusy(each.path, error.strerror or str(error)) from error
            log.debug("volume unmounted", path=str(each.path))

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
        """Return the pod's share of the threads for a path: those of the node may hang."""
        is_own = path.is_relative_to(self._folders.pod(pod.metadata.uid))
        threads = self._threads.preparing if is_own else self._threads.host_paths
        return threads.share_of(pod.metadata)


def _used_volumes(pod: Pod) -> frozenset[str]:
    used: set[str] = set()
    for container in pod.spec.all_containers:
        used.update(mount.name for mount in container.volume_mounts)
        used.update(device.name for device in container.volume_devices)
    return frozenset(used)


def _remove_volume(folder: Path) -> None:
    """Remove what is left of a volume; with content only where the agent itself put it there."""
    if folder.parent.name in _KEPT_ON_DISK:
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
