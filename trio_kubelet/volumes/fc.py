"""fc: disks behind Fibre Channel adapters, by target and LUN or by WWID (API: FCVolumeSource).

The adapters are told to look for the disk; udev links it below /dev/disk, by which it is found.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from attrs import define, field, frozen

from trio_kubelet.k8s import FCVolumeSource, Pod
from trio_kubelet.kernel.scsi_disks import SCSIDisks
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.disk_paths import DiskPaths
from trio_kubelet.volumes.disks import (
    MAX_NAME_BYTES,
    AttachedDisk,
    Others,
    require_few,
    require_short,
)
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.resolved import ResolvedVolume

MAX_WWNS = 16
"""Of the targets of a disk, or of its own: a disk has a path to each, and each is in its name."""
MAX_WWN_BYTES = 128


@frozen(kw_only=True)
class FCDisk:
    """A disk of the world wide names of its targets and a LUN, or of its own identifiers."""

    targets: tuple[str, ...] = ()
    lun: int | None = None
    ids: tuple[str, ...] = ()

    def to_record(self) -> Mapping[str, object]:
        """Return the values for the record on the disk."""
        return {"targets": self.targets, "lun": self.lun, "ids": self.ids}

    @classmethod
    def of_record(cls, disk: AttachedDisk) -> "FCDisk":
        """Return what a record says. Raises KeyError, TypeError, ValueError."""
        told = disk.source
        lun = told["lun"]
        return cls(
            targets=tuple(map(str, told["targets"])),
            lun=None if lun is None else int(lun),
            ids=tuple(map(str, told["ids"])),
        )

    @property
    def links(self) -> tuple[str, tuple[str, ...]]:
        """Return the folder below /dev/disk, and how the names of the disk's links end there."""
        if self.targets:
            names = [each.lower().removeprefix("0x") for each in self.targets]
            return "by-path", tuple(f"-fc-0x{each}-lun-{self.lun}" for each in names)
        return "by-id", tuple(f"scsi-{each.replace(' ', '_')}" for each in self.ids)


@define(eq=False)
class FCDisks:
    """The kind `fc` of disks."""

    _disks: SCSIDisks = field(factory=SCSIDisks)
    _paths: DiskPaths = field(init=False)

    name = "kubernetes.io/fc"
    is_attached_by_controller = True

    def __attrs_post_init__(self) -> None:
        self._paths = DiskPaths(self._disks)

    def disk(self, volume: ResolvedVolume) -> AttachedDisk:
        """Return the disk of a volume, with places and names as in the Go kubelet.

        Raises ValueError for a source that names neither targets with a LUN nor WWIDs, or too many.
        """
        source = volume.source_as(FCVolumeSource)
        require_few("fc.targetWWNs", source.target_wwns, MAX_WWNS, MAX_WWN_BYTES)
        require_few("fc.wwids", source.wwids, MAX_WWNS, MAX_WWN_BYTES)
        if source.target_wwns and source.lun is not None:
            found = FCDisk(targets=source.target_wwns, lun=source.lun)
            name = f"[{' '.join(source.target_wwns)}]:{source.lun}"
            folder = f"{'-'.join(source.target_wwns)}-lun-{source.lun}"
        elif source.wwids:
            found = FCDisk(ids=source.wwids)
            name, folder = f"[{' '.join(source.wwids)}]", "-".join(source.wwids)
        else:
            raise ValueError("fc must have targetWWNs and lun, or wwids")
        require_short("fc: the name of the disk", name, MAX_NAME_BYTES)
        return AttachedDisk(
            plugin=self.name,
            name=name,
            folder=(folder,),
            is_block=volume.is_block,
            volume=volume.spec_name,
            source=found.to_record(),
        )

    async def with_what_is_there(
        self, disk: AttachedDisk, _others: Sequence[AttachedDisk], _threads: Share
    ) -> AttachedDisk:
        """Return the disk as it is: one that was there before is removed with its last volume."""
        return disk

    async def attach(
        self, disk: AttachedDisk, _pod: Pod, _volume: ResolvedVolume, threads: Share
    ) -> Path:
        """Have the adapters look for the disk, and return its device. Raises OSError."""
        wanted = FCDisk.of_record(disk)
        if not await threads.run_sync(partial(self._paths_of, wanted)):
            hosts = await threads.run_sync(self._disks.fibre_channel_hosts)
            if not hosts:
                raise OSError("fc: this node has no Fibre Channel adapter (/sys/class/fc_host)")
            for host in hosts:
                await threads.run_sync(partial(self._disks.scan, host, wanted.lun))
        return await self._paths.wait(partial(self._paths_of, wanted), f"{disk.name} (fc)", threads)

    async def detach(self, disk: AttachedDisk, _others: Others, threads: Share) -> None:
        """Have the kernel forget the disk. Raises OSError."""
        await self._paths.remove(partial(self._paths_of, FCDisk.of_record(disk)), threads)

    def device(self, disk: AttachedDisk) -> Path | None:
        """Return the device of a disk that is attached. Blocks."""
        return self._paths.device(self._paths_of(FCDisk.of_record(disk)))

    def mounted(self, _folders: PodFolders) -> Sequence[tuple[AttachedDisk, Sequence[str]]]:
        """Return none: a mount does not tell the targets of its disk."""
        return ()

    def _paths_of(self, disk: FCDisk) -> Sequence[str]:
        folder, ends = disk.links
        return self._disks.disks_named(folder, ends)
