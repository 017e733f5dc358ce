"""A node with disks, whose agent may be started again, for the tests of this part."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from tests.unit.references.cluster import Cluster
from trio_kubelet.kernel.mountinfo import MountPoint, mount_points, mounts_at_or_below
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.volumes import (
    DiskStages,
    NodeOfVolumes,
    PodFolders,
    StagedVolumes,
    VolumeOperations,
    disk_kinds,
    local_volumes,
)
from trio_kubelet.volumes.volumes import Volumes


@define(eq=False)
class DiskNode:
    """The volumes of a node. `attaches`: a controller tells which disks it may have."""

    folders: PodFolders
    cluster: Cluster
    attaches: bool = False
    recorder: EventRecorder | None = None
    staged: StagedVolumes = field(init=False)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Volumes]:
        """Run an agent; it is stopped without giving anything back."""
        self.staged = StagedVolumes(
            self.folders.root, Journal(SystemClock()), lambda: None, VolumeOperations()
        )
        objects = self.cluster.references
        kinds = disk_kinds(objects)
        disks = DiskStages(
            self.folders, self.staged, kinds, attaches=self.attaches, recorder=self.recorder
        )
        node = NodeOfVolumes(disks=disks, recorder=self.recorder)
        volumes = local_volumes(self.folders, lambda pod: 1 << 20, data=objects, node=node)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.staged.run)
            yield volumes
            nursery.cancel_scope.cancel()

    def mounts(self) -> tuple[MountPoint, ...]:
        """The mounts below the root folder, newest first."""
        return mounts_at_or_below(self.folders.root.resolve(), mount_points())

    def records(self) -> list[Path]:
        """The records of disks that are attached."""
        return list(self.folders.root.glob("disks/*.json"))
