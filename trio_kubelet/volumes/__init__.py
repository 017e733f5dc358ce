"""The volumes of pods: own folders (emptyDir), files of the node (hostPath), configuration data.

configMap, secret, downwardAPI and projected volumes are made of the objects of the API and of the
pod itself. `Volumes` prepares the volumes of a pod before its containers and removes them after;
`PodFolders` knows where everything of a pod is on disk.
"""

import os
from collections.abc import Callable, Mapping

from trio_kubelet.k8s import Quantity
from trio_kubelet.references import NoReferences, References
from trio_kubelet.tasks.clock import Clock, SystemClock
from trio_kubelet.volumes.collect import Collector
from trio_kubelet.volumes.configuration import KINDS, ConfigurationVolume, VolumeParts
from trio_kubelet.volumes.empty_dir import EmptyDir, MemoryAvailable
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.host_path import HostPath
from trio_kubelet.volumes.plugin import VolumePlugin, VolumeThreads
from trio_kubelet.volumes.pod_storage import PodStorage
from trio_kubelet.volumes.volumes import Volumes


def local_volumes(
    folders: PodFolders,
    memory_available: MemoryAvailable,
    *,
    data: References | NoReferences | None = None,
    allocatable: Callable[[], Mapping[str, Quantity]] = dict,
    clock: Clock | None = None,
    privileged: bool | None = None,
) -> Volumes:
    """Return the volumes of pods: the table of plugins.

    `data` is where objects of the API come from, None without an API server. `allocatable` is
    what the node has for pods. `privileged`: whether mounts can be made and files given away;
    None: if the agent is root.
    """
    threads = VolumeThreads()
    parts = VolumeParts(
        folders=folders,
        memory_available=memory_available,
        threads=threads,
        clock=clock or SystemClock(),
        privileged=os.geteuid() == 0 if privileged is None else privileged,
    )
    collector = Collector(data=data or NoReferences(), allocatable=allocatable)
    plugins: Mapping[str, VolumePlugin] = {
        "empty_dir": EmptyDir(folders, memory_available, threads),
        "host_path": HostPath(threads.host_paths),
        **{
            field: ConfigurationVolume(kind, collector.collect, parts=parts)
            for field, kind in KINDS.items()
        },
    }
    return Volumes(folders, plugins, threads)


__all__ = [
    "PodFolders",
    "PodStorage",
    "local_volumes",
]
