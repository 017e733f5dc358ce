"""emptyDir: a folder that lives as long as its pod, on disk, in memory or in huge pages.

A file `ready` beside the volume says that it was prepared completely. A volume on disk that is
ready, and a memory file system that is mounted, are taken as they are: they hold the pod's data.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from attrs import frozen

from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    EmptyDirVolumeSource,
    Pod,
    Quantity,
    StorageMedium,
)
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.folders import (
    PLUGIN_FOLDER_MODE,
    PodFolders,
    make_folder,
    make_folders,
)
from trio_kubelet.volumes.mount import memory_options, mount
from trio_kubelet.volumes.plugin import MountedVolume, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume
from trio_kubelet.volumes.safe_open import remove_in_pieces

_FOLDER_MODE = 0o777
_GROUP_MODE = 0o2770
"""With fsGroup: the group may do everything, and what is made inside belongs to it as well."""

_HUGEPAGES_MEDIUM = "HugePages-"

MemoryAvailable = Callable[[Pod], int]
"""Bytes that a pod may use at most: its memory limit, or what the node can allocate."""


@frozen
class EmptyDir:
    """The plugin for `volumes[].emptyDir`."""

    name = "kubernetes.io/empty-dir"

    _folders: PodFolders
    _memory_available: MemoryAvailable
    _threads: VolumeThreads

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Prepare the folder; raises VolumeError. A call that was begun is not cut off."""
        try:
            share = self._threads.preparing.share_of(pod.metadata)
            return await share.run_sync(partial(self._set_up, pod, volume))
        except OSError as error:
            raise VolumeError(volume.name, str(error)) from error

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Remove the folder and its mark; raises OSError."""
        mark = self._folders.plugin(pod_uid, self.name, folder.name)
        for each in (mark, folder):
            await remove_in_pieces(threads, each)

    def _set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        source = volume.source_as(EmptyDirVolumeSource)
        uid = pod.metadata.uid
        folder = self._folders.volume(uid, self.name, volume.name)
        marks = self._folders.plugin(uid, self.name, volume.name)
        real = folder.resolve()
        present = next((each for each in mount_points(real) if each.path == real), None)
        mounted = MountedVolume(name=volume.name, host_path=str(folder), selinux_relabel=True)
        if (marks / "ready").exists() and _is_as_wanted(folder, source.medium, present):
            return mounted
        make_folders(folder.parent, PLUGIN_FOLDER_MODE)
        make_folder(folder, _FOLDER_MODE)
        wanted = _file_system(source, pod, volume.name, self._memory_available)
        if wanted is not None and present is None:
            fs_type, options = wanted
            mount("tmpfs" if fs_type == "tmpfs" else "nodev", folder, fs_type, options=options)
        _give_to_group(pod, folder)
        make_folders(marks)
        (marks / "ready").touch(0o644)
        return mounted


def memory_size_bytes(size_limit: Quantity | None, available_bytes: int) -> int:
    """Return the size of a volume in memory: its limit, but no more than the pod may use."""
    if size_limit is None or not 0 < size_limit.value < available_bytes:
        return available_bytes
    return size_limit.value


def hugepage_size_bytes(medium: str, requests: Iterable[Mapping[str, Quantity]]) -> int:
    """Return the page size for a medium, given what the pod and its containers request.

    Raises ValueError where nobody requests such pages, or the medium leaves the size open
    and there are several.
    """
    sizes = {
        Quantity(name.removeprefix(HUGEPAGES_PREFIX)).value
        for each in requests
        for name in each
        if name.startswith(HUGEPAGES_PREFIX)
    }
    if medium != StorageMedium.HUGE_PAGES:
        sizes &= {Quantity(medium.removeprefix(_HUGEPAGES_MEDIUM)).value}
    if not sizes:
        raise ValueError(
            f"medium {medium}: hugePages storage requested, but there is no resource request "
            "for huge pages"
        )
    if len(sizes) > 1:
        raise ValueError(
            f"medium: {medium} can't be used if container requests multiple huge page sizes"
        )
    return sizes.pop()


def _file_system(
    source: EmptyDirVolumeSource, pod: Pod, volume: str, memory_available: MemoryAvailable
) -> tuple[str, str] | None:
    """Return type and options of what is mounted for a medium; None for the disk."""
    if source.medium == StorageMedium.DEFAULT:
        return None
    if source.medium == StorageMedium.MEMORY:
        size = memory_size_bytes(source.size_limit, memory_available(pod))
        return "tmpfs", memory_options(size)
    if source.medium != StorageMedium.HUGE_PAGES and not source.medium.startswith(
        _HUGEPAGES_MEDIUM
    ):
        raise VolumeError(volume, f'unknown storage medium "{source.medium}"')
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    asked = (pod.spec.resources, *(each.resources for each in containers))
    requests = [resources.requests for resources in asked if resources is not None]
    try:
        return "hugetlbfs", f"pagesize={hugepage_size_bytes(source.medium, requests)}"
    except ValueError as error:
        raise VolumeError(volume, str(error)) from error


def _is_as_wanted(folder: Path, medium: str, present: MountPoint | None) -> bool:
    return folder.is_dir() if medium == StorageMedium.DEFAULT else present is not None


def _give_to_group(pod: Pod, folder: Path) -> None:
    context = pod.spec.security_context
    if context is None or context.fs_group is None:
        return
    os.chown(folder, -1, context.fs_group)
    folder.chmod(folder.stat().st_mode & 0o7777 | _GROUP_MODE)
