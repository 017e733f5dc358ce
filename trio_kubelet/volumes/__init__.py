"""What pods mount: folders of their own (emptyDir), files of the node (hostPath).

`Volumes` prepares the volumes of a pod before its containers and removes them after;
`PodFolders` knows where everything of a pod is on disk.
"""

from collections.abc import Mapping

import trio

from trio_kubelet.volumes.empty_dir import EmptyDir, MemoryAvailable
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.host_path import HostPath
from trio_kubelet.volumes.plugin import (
    MountedVolume,
    VolumeBusy,
    VolumeError,
    VolumePlugin,
    VolumesNotReady,
)
from trio_kubelet.volumes.volumes import Volumes

MAX_THREADS = 16
"""Threads for volumes: enough for many mounts at once, few enough for a disk that hangs."""


def local_volumes(folders: PodFolders, memory_available: MemoryAvailable) -> Volumes:
    """Return the volumes that need nothing but the node: the table of plugins."""
    limiter = trio.CapacityLimiter(MAX_THREADS)
    plugins: Mapping[str, VolumePlugin] = {
        "empty_dir": EmptyDir(folders, memory_available, limiter),
        "host_path": HostPath(limiter),
    }
    return Volumes(folders, plugins, limiter)


__all__ = [
    "EmptyDir",
    "HostPath",
    "MemoryAvailable",
    "MountedVolume",
    "PodFolders",
    "VolumeBusy",
    "VolumeError",
    "VolumePlugin",
    "Volumes",
    "VolumesNotReady",
    "local_volumes",
]
