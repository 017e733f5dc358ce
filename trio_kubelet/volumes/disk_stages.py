"""Disks at the node: each is attached, and its file system mounted, once for all pods.

The file system is mounted where the Go kubelet mounts it, and bound from there into the folders of
pods. A disk that is a device for its pods is attached alone. Disks of one place with a file system
are mounted read only if the first pod may only read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attrs import define, field, frozen

from trio_kubelet.k8s import PersistentVolumeAccessMode, Pod
from trio_kubelet.kernel.mountinfo import is_mounted, mount_points
from trio_kubelet.references import ObjectError
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.disk_file_systems import (
    FileSystem,
    FileSystemMismatchError,
    mount_disk,
    program_limiter,
)
from trio_kubelet.volumes.disks import AttachedDisk, DiskKind, DiskRecords, KnownDisks
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders, plugin_folder
from trio_kubelet.volumes.mount import unmount
from trio_kubelet.volumes.operations import UNMAP_DEVICE, UNMOUNT_DEVICE
from trio_kubelet.volumes.plugin import VolumeError
from trio_kubelet.volumes.resolved import ResolvedVolume
from trio_kubelet.volumes.staged_volumes import StagedVolumes
from trio_kubelet.volumes.volume_stage import LeftStages, VolumeStage, Work

ATTACH, MOUNT_DEVICE = "MountVolume.WaitForAttach", "MountVolume.MountDevice"
ATTACH_DEVICE = "MapVolume.WaitForAttach"
_UNMOUNT_DEVICE = "UnmountDevice"


@frozen
class DiskStage:
    """A disk that is attached, and mounted."""

    disk: AttachedDisk
    _stages: "DiskStages" = field(eq=False, repr=False)

    @property
    def unique_name(self) -> str:
        """The volume in the Node's `volumesInUse` and `volumesAttached`."""
        return self.disk.unique_name

    @property
    def mark(self) -> tuple[str, str]:
        """Its plugin, and the disk's digest."""
        return plugin_folder(self.disk.plugin), self.disk.digest

    @property
    def place_name(self) -> str:
        """Its own: no two disks are mounted in one place."""
        return "/".join(self.mark)

    @property
    def unstaging_name(self) -> tuple[str, str]:
        """Plugin and operation, as metrics tell of it."""
        return self.disk.plugin, UNMAP_DEVICE if self.disk.is_block else UNMOUNT_DEVICE

    @property
    def may_be_attachable(self) -> bool:
        """True for a kind of disks that a controller knows."""
        return self._stages.kinds[self.disk.plugin].is_attached_by_controller

    async def is_attachable(self, _volume: ResolvedVolume) -> bool:
        """True if a controller tells the node that it may have the disk."""
        return self._stages.attaches and self.may_be_attachable

    async def why_node_is_full(self) -> str:
        """No node has too many disks."""
        return ""

    async def begin_staging(self, pod: Pod, volume: ResolvedVolume, threads: Share) -> Work:
        """Write the record, and return the work that attaches and mounts the disk."""
        return await self._stages.begin_staging(pod, volume, self.disk, threads)

    async def begin_unstaging(self, threads: Share) -> Work:
        """Return the work that unmounts and detaches the disk; both raise VolumeError."""
        return await self._stages.begin_unstaging(self.disk, threads)

    async def discard(self, threads: Share) -> None:
        """Remove the record of a disk that was not attached after all. Raises OSError."""
        await self._stages.discard(self.disk, threads)


@define(eq=False)
class DiskStages:
    """Disks of all kinds, as one kind of volumes that are staged.

    `attaches`: a controller tells the node which disks it may have. `recorder` is told of a disk
    with another file system than its PersistentVolume says.
    """

    folders: PodFolders
    volumes: StagedVolumes
    sources: Mapping[str, DiskKind]
    """The kinds, by the field that the source stands in: `iscsi`."""
    attaches: bool
    recorder: EventRecorder | None = None
    kinds: Mapping[str, DiskKind] = field(init=False)
    """The same by the names of plugins."""
    records: DiskRecords = field(init=False)
    _known: KnownDisks = field(init=False, factory=KnownDisks)
    """Read off the records before anything is staged; the tasks of disks keep it up to date."""

    _mounting: FairLimiter = field(init=False, factory=program_limiter)
    """A pod has a slot from the look at a disk until it is mounted."""

    def __attrs_post_init__(self) -> None:
        self.records = DiskRecords(self.folders)
        self.kinds = {each.name: each for each in self.sources.values()}
        self.volumes.kinds.append(self._left)

    def stage(self, disk: AttachedDisk) -> DiskStage:
        """Return the place of a disk."""
        return DiskStage(disk, self)

    async def device(self, pod: Pod, disk: AttachedDisk) -> Path | None:
        """Return the device of a pod's disk; None if it is not attached."""
        threads = self.volumes.staging.share_of(pod.metadata)
        return await threads.run_sync(partial(self._device, disk))

    async def begin_staging(
        self, pod: Pod, volume: ResolvedVolume, disk: AttachedDisk, threads: Share
    ) -> Work:
        """Write the record, and return the work that attaches and mounts a disk.

        Both raise VolumeError.
        """
        kind = self.kinds[disk.plugin]
        step = ATTACH_DEVICE if disk.is_block else ATTACH
        if not kind.is_attached_by_controller:
            step = MOUNT_DEVICE
        with _errors_of(volume.spec_name, step):
            target, wanted = disk.mount_point(self.folders.root), file_system(volume)
            # What a Go kubelet has mounted was attached by it, for this node.
            if not await threads.run_sync(partial(is_mounted, target)):
                disk = await kind.with_what_is_there(disk, self._known.others(disk), threads)
            disk = await threads.run_sync(partial(self.records.write, disk))
            self._known.add(disk)

        async def work() -> None:
            with _errors_of(volume.spec_name, step):
                device = await kind.attach(disk, pod, volume, threads)
            if not disk.is_block:
                with _errors_of(volume.spec_name, MOUNT_DEVICE):
                    await threads.run_sync(partial(make_folders, target, FOLDER_MODE))
                    if not await threads.run_sync(partial(is_mounted, target)):
                        async with self._mounting.share_of(pod.metadata):
                            await self._mount(volume, device, target, wanted)

        return work

    async def _mount(
        self, volume: ResolvedVolume, device: Path, target: Path, wanted: FileSystem
    ) -> None:
        """Mount a disk. Raises OSError, ValueError."""
        try:
            await mount_disk(device, target, wanted)
        except FileSystemMismatchError as error:
            if volume.persistent is not None and self.recorder is not None:
                words = f'MountVolume failed for volume "{volume.spec_name}" : {error}'
                reason = "FailedMountOnFilesystemMismatch"
                self.recorder.volume(volume.persistent, EventType.WARNING, reason, words)
            raise

    async def begin_unstaging(self, disk: AttachedDisk, threads: Share) -> Work:
        """Return the work that unmounts and detaches a disk; both raise VolumeError."""
        disk = await threads.run_sync(partial(self.records.read, disk))
        with _errors_of(disk.volume, _UNMOUNT_DEVICE):
            target = disk.mount_point(self.folders.root)
            is_detached = self.kinds[disk.plugin].is_attached_by_controller
            # What stays at the node may be mounted by others, too.
            look = partial(_mounted_elsewhere, target, None if is_detached else self.folders.pods)
            elsewhere = await threads.run_sync(look)
            if elsewhere:
                shown = " ".join(map(str, elsewhere))
                raise OSError(
                    f"The device mount path {str(target)!r} is still mounted by other "
                    f"references [{shown}]"
                )

        async def work() -> None:
            with _errors_of(disk.volume, _UNMOUNT_DEVICE):
                await threads.run_sync(partial(_unmount, target))
                others = partial(self._known.others, disk)
                if all(each.name != disk.name for each in others()):
                    await self.kinds[disk.plugin].detach(disk, others, threads)
                await threads.run_sync(partial(_remove_folders, target, len(disk.folder)))
                await threads.run_sync(partial(self.records.remove, disk))
                self._known.remove(disk)

        return work

    async def discard(self, disk: AttachedDisk, threads: Share) -> None:
        """Remove the record of a disk that nobody has begun to attach. Raises OSError."""
        await threads.run_sync(partial(self.records.remove, disk))
        self._known.remove(disk)

    def _left(self) -> LeftStages:
        """Read off the disk which volumes there are, and who uses which. Blocks; raises OSError."""
        stages: dict[VolumeStage, bool] = {}
        for disk in self.records.all():
            self._known.add(disk)
            if disk.plugin in self.kinds:
                stages[self.stage(disk)] = self._is_staged(disk)
        users = [(uid, self.stage(disk)) for uid, disk in self.records.users(tuple(self.kinds))]
        for kind in self.kinds.values():
            for disk, uids in kind.mounted(self.folders):  # Also by a Go kubelet.
                stages.setdefault(self.stage(disk), True)
                users += [(uid, self.stage(disk)) for uid in uids]
        return LeftStages(stages, users)

    def _is_staged(self, disk: AttachedDisk) -> bool:
        if disk.is_block:
            return self._device(disk) is not None
        try:
            return is_mounted(disk.mount_point(self.folders.root))
        except ValueError:
            return False

    def _device(self, disk: AttachedDisk) -> Path | None:
        return self.kinds[disk.plugin].device(disk)


def file_system(volume: ResolvedVolume) -> FileSystem:
    """Return the file system that a volume wants on its disk. Raises ValueError."""
    source = volume.source
    modes = () if volume.persistent is None else volume.persistent.spec.access_modes
    only_read = modes == (PersistentVolumeAccessMode.READ_ONLY_MANY,)
    return FileSystem(
        fs_type=getattr(source, "fs_type", ""),
        options=volume.mount_options,
        read_only=volume.read_only or only_read or bool(getattr(source, "read_only", None)),
    )


def _mounted_elsewhere(target: Path, within: Path | None = None) -> tuple[Path, ...]:
    """Return where else the file system, or a part of it, is mounted that is mounted on a path.

    With `within` below that folder alone.
    """
    real, mounts = target.parent.resolve() / target.name, mount_points()
    inside = Path("/") if within is None else within.resolve()
    own = {each.device for each in mounts if each.path == real}
    # The same mount may show up at other paths, where the root folder is mounted twice.
    return tuple(
        each.path
        for each in mounts
        if each.device in own
        and each.path.parts[-len(_named(real)) :] != _named(real)
        and each.path.is_relative_to(inside)
    )


def _named(path: Path) -> tuple[str, ...]:
    """Return the parts of a mount point's path that name it: from `plugins` on."""
    return path.parts[path.parts.index("plugins") :] if "plugins" in path.parts else path.parts


def _unmount(target: Path) -> None:
    if is_mounted(target):
        unmount(target)


def _remove_folders(target: Path, depth: int) -> None:
    """Remove the mount point, and those above it that are a disk's own, if they are empty."""
    for folder in (target, *target.parents)[:depth]:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return  # Other disks of the interface are there.


@contextmanager
def _errors_of(volume: str, step: str) -> Iterator[None]:
    """Raise what goes wrong in a step as VolumeError, in the words of events."""
    try:
        yield
    except (OSError, ObjectError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise VolumeError(volume, str(error), step) from error
