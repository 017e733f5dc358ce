"""The volumes of pods, of the pod's own sources and of claims.

A claim stands for a persistent volume; its source has the same plugin as in a pod (emptyDir,
hostPath, local, nfs, iscsi, fc, flexVolume, csi). configMap, secret, downwardAPI and projected
volumes are made of the objects of the API and of the pod itself. `Volumes` prepares the volumes of
a pod before its containers and removes them after; `PodFolders` knows where everything of a pod is
on disk.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from attrs import frozen

from trio_kubelet.k8s import Node, Quantity
from trio_kubelet.references import NoReferences, References
from trio_kubelet.tasks.clock import Clock, SystemClock
from trio_kubelet.telemetry import EventRecorder
from trio_kubelet.volumes.collect import Collector
from trio_kubelet.volumes.configuration import KINDS, ConfigurationVolume, VolumeParts
from trio_kubelet.volumes.csi_records import PLUGIN
from trio_kubelet.volumes.csi_requests import CSIParts
from trio_kubelet.volumes.csi_stages import CSIStages
from trio_kubelet.volumes.devices import LocalDevice
from trio_kubelet.volumes.disk_stages import DiskStages
from trio_kubelet.volumes.disk_volume import DiskVolumes
from trio_kubelet.volumes.disks import DiskKind
from trio_kubelet.volumes.empty_dir import EmptyDir, MemoryAvailable
from trio_kubelet.volumes.fc import FCDisks
from trio_kubelet.volumes.flex_volume import FlexDrivers, FlexVolumes
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.host_path import HostPath
from trio_kubelet.volumes.image import ImageVolume
from trio_kubelet.volumes.iscsi import ISCSIDisks
from trio_kubelet.volumes.local import LocalVolume
from trio_kubelet.volumes.local_disks import LocalDisks
from trio_kubelet.volumes.nfs import NFSVolume
from trio_kubelet.volumes.operations import VolumeOperation, VolumeOperations
from trio_kubelet.volumes.ownership import VolumeOwnership
from trio_kubelet.volumes.plugin import VolumePlugin, VolumeThreads
from trio_kubelet.volumes.pod_storage import PodStorage
from trio_kubelet.volumes.resolver import VolumeResolver
from trio_kubelet.volumes.staged_volumes import StagedVolumes
from trio_kubelet.volumes.volumes import EPHEMERAL_PLUGINS, Volumes


@frozen(kw_only=True)
class NodeOfVolumes:
    """The node as volumes see it.

    `allocatable` is what it has for pods, `object` returns its Node object, None while that is
    not known; `recorder` is told of events while a volume is being made. `plugin_folder` has the
    drivers of flexVolumes, None where there are none; `disks` are those that the node mounts
    itself, None: it mounts none.
    """

    allocatable: Callable[[], Mapping[str, Quantity]] = dict
    object: Callable[[], Node | None] = lambda: None
    recorder: EventRecorder | None = None
    plugin_folder: Path | None = None
    disks: DiskStages | None = None


NO_NODE = NodeOfVolumes()


def disk_kinds(objects: References | NoReferences) -> Mapping[str, DiskKind]:
    """Return the kinds of disks that the node mounts itself: the table, by their sources."""
    return {"fc": FCDisks(), "iscsi": ISCSIDisks(objects), "local": LocalDisks()}


def local_volumes(
    folders: PodFolders,
    memory_available: MemoryAvailable,
    *,
    data: References | NoReferences | None = None,
    node: NodeOfVolumes = NO_NODE,
    clock: Clock | None = None,
    privileged: bool | None = None,
) -> Volumes:
    """Return the volumes of pods: the table of plugins.

    `data` is where objects of the API come from, None without an API server. `privileged`: mounts
    can be made and files given away; None: if the agent is root.
    """
    threads = VolumeThreads()
    parts = VolumeParts(
        folders=folders,
        memory_available=memory_available,
        threads=threads,
        clock=clock or SystemClock(),
        privileged=os.geteuid() == 0 if privileged is None else privileged,
    )
    objects = data or NoReferences()
    ownership = VolumeOwnership(threads.owning, node.recorder)
    collector = Collector(data=objects, allocatable=node.allocatable)
    nfs = NFSVolume(folders, threads, parts.privileged)
    disks: dict[str, DiskVolumes] = {}
    if node.disks is not None:
        make = partial(DiskVolumes, stages=node.disks, folders=folders, threads=threads)
        make = partial(make, ownership=ownership, privileged=parts.privileged)
        kinds = node.disks.sources.items()
        disks = {field: make(kind, recorder=node.recorder) for field, kind in kinds}
    plugins: dict[str, VolumePlugin] = {
        **disks,
        "empty_dir": EmptyDir(folders, memory_available, threads),
        "host_path": HostPath(threads.host_paths),
        "image": ImageVolume(),
        "local": LocalVolume(folders, threads, ownership, node.recorder, disks.get("local")),
        "nfs": nfs,
        **{
            field: ConfigurationVolume(kind, collector.collect, parts=parts)
            for field, kind in KINDS.items()
        },
    }
    devices: dict[str, VolumePlugin] = {
        **disks,
        "local": LocalDevice(folders, threads, node.recorder),
    }
    flex = None
    if node.plugin_folder is not None:
        taken = frozenset({PLUGIN, *(plugin.name for plugin in plugins.values())})
        drivers = FlexDrivers(node.plugin_folder, taken)
        flex = plugins["flex_volume"] = FlexVolumes(drivers, folders, threads, ownership, objects)
    resolver = VolumeResolver(objects, node.object, folders, threads)
    return Volumes(
        folders,
        resolver,
        plugins,
        threads,
        devices,
        flex=flex,
        nfs=nfs,
        disks=tuple(disks.values()),
    )


__all__ = [
    "EPHEMERAL_PLUGINS",
    "CSIParts",
    "CSIStages",
    "DiskStages",
    "NodeOfVolumes",
    "PodFolders",
    "PodStorage",
    "StagedVolumes",
    "VolumeOperation",
    "VolumeOperations",
    "disk_kinds",
    "local_volumes",
]
