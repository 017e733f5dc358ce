"""Persistent volumes of CSI drivers at the node: each is staged by its driver, once for all pods.

Record and mark (`csi_records.py`, `doubt_marks.py`) are on the disk before the driver is asked. As
long as the file system is mounted anywhere else than where it is staged, it is not unstaged.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.csi import DriverClient
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.rpc import Code, RpcError, rpc_words
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.volumes.csi_expansion import VolumeExpansions
from trio_kubelet.volumes.csi_records import (
    RecordError,
    StagePlace,
    discard_stage,
    mounts_of_staged,
    recorded_stages,
    recorded_users,
    remove_stage,
    remove_unrecorded_stages,
    stage_place,
    stage_record,
    write_stage_record,
)
from trio_kubelet.volumes.csi_republishing import Republications
from trio_kubelet.volumes.csi_requests import (
    STAGES,
    Capabilities,
    CSIParts,
    CSIRequests,
    NoDriverError,
    volume_key,
)
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders
from trio_kubelet.volumes.operations import UNMAP_DEVICE, UNMOUNT_DEVICE
from trio_kubelet.volumes.plugin import VolumeError
from trio_kubelet.volumes.resolved import ResolvedVolume
from trio_kubelet.volumes.staged_volumes import StagedVolumes
from trio_kubelet.volumes.volume_stage import LeftStages, VolumeStage, Work

log = structlog.get_logger("volumes")

_MOUNT_DEVICE, _MAP_DEVICE = "MountVolume.MountDevice", "MapVolume.SetUpDevice"


@frozen
class CSIStage:
    """A volume of a driver that is staged at a place."""

    place: StagePlace
    _stages: "CSIStages" = field(eq=False, repr=False)

    @property
    def unique_name(self) -> str:
        """The volume in the Node's `volumesInUse` and `volumesAttached`."""
        return self.place.key.unique_name

    @property
    def mark(self) -> tuple[str, str]:
        """Its driver, and the volume's digest."""
        return self.place.key.driver, self.place.key.digest

    @property
    def place_name(self) -> str:
        """Its path: that of a device has the name of the PersistentVolume alone."""
        return str(self.place.path)

    @property
    def unstaging_name(self) -> tuple[str, str]:
        """Plugin and operation, as metrics tell of it."""
        name = UNMOUNT_DEVICE if self.place.device is None else UNMAP_DEVICE
        return self._stages.parts.shown_plugin(self.place.key.driver), name

    @property
    def may_be_attachable(self) -> bool:
        """True: the driver's CSIDriver object tells."""
        return True

    async def is_attachable(self, volume: ResolvedVolume) -> bool:
        """True if a controller attaches the volume to nodes. Raises VolumeError."""
        spec = await self._stages.requests.driver_settings(volume)
        return spec.attach_required is not False

    async def why_node_is_full(self) -> str:
        """Return why the volume cannot be attached as the node has too many; "" if it may be."""
        return await self._stages.requests.why_node_is_full(self.place.key)

    async def begin_staging(self, pod: Pod, volume: ResolvedVolume, threads: Share) -> Work:
        """Write the record, and return the call of the driver; both raise VolumeError."""
        return await self._stages.begin_staging(pod, volume, self, threads)

    async def begin_unstaging(self, threads: Share) -> Work:
        """Return the call of the driver that undoes the stage; both raise VolumeError."""
        return await self._stages.begin_unstaging(self.place, threads)

    async def discard(self, threads: Share) -> None:
        """Remove the record of a volume that was not staged after all. Raises OSError."""
        await self._stages.discard(self.place, threads)


@define(eq=False)
class CSIStages:
    """Persistent volumes of CSI drivers, as one kind of those that are staged."""

    parts: CSIParts
    folders: PodFolders
    objects: References | NoReferences
    volumes: StagedVolumes
    requests: CSIRequests = field(init=False)
    expansions: VolumeExpansions = field(init=False)
    republications: Republications = field(init=False)
    _contexts: dict[StagePlace, Mapping[str, str]] = field(init=False, factory=dict)
    """Of volumes that are staged, or are being staged."""
    _unasked: set[StagePlace] = field(init=False, factory=set)
    """The places of volumes that count as staged, as their drivers did not want to be asked."""

    def __attrs_post_init__(self) -> None:
        self.requests = CSIRequests(self.parts, self.objects)
        self.expansions = VolumeExpansions(
            self.parts,
            self.requests,
            self.objects,
            lambda place: self.volumes.one_call(self.at(place)),
        )
        self.republications = Republications(self.parts.recorder, self.parts.look_seconds)
        self.volumes.kinds.append(self._left)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after published volumes until cancelled, and hurry when drivers come or go."""
        self.parts.drivers.on_change.add(self.volumes.hurry)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.expansions.run)
            await nursery.start(self.republications.run)
            task_status.started()

    def at(self, place: StagePlace) -> CSIStage:
        """Return what is staged at a place."""
        return CSIStage(place, self)

    def stage(self, volume: ResolvedVolume) -> CSIStage:
        """Return where a persistent volume is staged."""
        device = volume.spec_name if volume.is_block else ""
        return self.at(stage_place(self.folders.root, volume_key(volume, ""), device))

    async def publish_context(self, volume: ResolvedVolume) -> Mapping[str, str]:
        """Return what the attachment of a volume has told; asked for once.

        Raises ObjectError, VolumeError.
        """
        stage = self.stage(volume)
        if stage.place not in self._contexts:
            attachable = await stage.is_attachable(volume)
            told = await self.requests.publish_context(stage.place.key) if attachable else {}
            self._contexts[stage.place] = told
        return self._contexts[stage.place]

    def staging_path(self, volume: ResolvedVolume, capabilities: Capabilities) -> str:
        """Return where a driver finds a volume staged; "" if it has not staged it."""
        place = self.stage(volume).place
        is_staged = STAGES in capabilities and place not in self._unasked
        return str(place.path) if is_staged else ""

    def is_outdated(self, volume: ResolvedVolume, capabilities: Capabilities) -> bool:
        """True if a driver has learned to stage volumes since one of its volumes came here."""
        return STAGES in capabilities and self.stage(volume).place in self._unasked

    async def begin_staging(
        self, pod: Pod, volume: ResolvedVolume, stage: CSIStage, threads: Share
    ) -> Work:
        """Write the record, and return the call of the driver; both raise VolumeError."""
        name, place = volume.spec_name, stage.place
        step = _MAP_DEVICE if place.device is not None else _MOUNT_DEVICE
        with _errors_of(name, step):
            driver = await self._driver(place, "attacher.MountDevice")
            capabilities = await driver.capabilities()
            asks = STAGES in capabilities
            context = await self.publish_context(volume)
            try:
                request = await self.requests.staging(
                    pod, volume, capabilities, context, place.path
                )
                # The record is first: without one nobody would remove the folder.
                write = partial(write_stage_record, place, self.parts.node, asks_driver=asks)
                await threads.run_sync(write)
                await threads.run_sync(partial(make_folders, place.path, FOLDER_MODE))
            except BaseException:
                # It may be detached before the next try.
                self._contexts.pop(place, None)
                raise

        async def work() -> None:
            if asks:
                with _errors_of(name, step):
                    await driver.stage(request)
                self._unasked.discard(place)
            else:
                self._unasked.add(place)

        return work

    async def begin_unstaging(self, place: StagePlace, threads: Share) -> Work:
        """Return the call of the driver that undoes the stage; both raise VolumeError.

        The driver is asked if it was asked to stage the volume, whatever it can do now. Nothing is
        to be done where another volume is staged in its place meanwhile.
        """
        handle = place.key.handle
        with _errors_of(handle, "UnmountDevice"):
            record = await threads.run_sync(partial(stage_record, place))
            if place.device is not None and record is not None and record.key != place.key:
                self._forget(place)
                return trio.lowlevel.checkpoint
            undo: Work = trio.lowlevel.checkpoint
            if record is None or record.is_driver_asked is not False:
                is_sure = record is not None and record.is_driver_asked is True
                undo = await self._unstaging(place, threads, is_sure=is_sure)
            others = await threads.run_sync(partial(mounts_of_staged, place))
            if others:
                shown = " ".join(map(str, others))
                raise OSError(
                    f"The device mount path {str(place.path)!r} is still mounted by other "
                    f"references [{shown}]"
                )

        async def work() -> None:
            with _errors_of(handle, "UnmountDevice"):
                await undo()
                await threads.run_sync(partial(remove_stage, place))
            self._forget(place)

        return work

    async def discard(self, place: StagePlace, threads: Share) -> None:
        """Remove the record of a volume that its driver was not asked for. Raises OSError."""
        await threads.run_sync(partial(discard_stage, place))
        self._forget(place)

    async def _unstaging(self, place: StagePlace, threads: Share, *, is_sure: bool) -> Work:
        """Return the call of a driver for a volume that it has staged; perhaps, if not `is_sure`.

        It is asked in doubt if it stages volumes today, or something is mounted. Both raise
        RpcError, NoDriverError, OSError.
        """
        driver = await self._driver(place, "attacher.UnmountDevice")
        stages = STAGES in await driver.capabilities()
        look = partial(is_mounted, place.path)
        if not (is_sure or stages or await threads.run_sync(look)):
            return trio.lowlevel.checkpoint

        async def unstage() -> None:
            try:
                await driver.unstage(place.key.handle, str(place.path))
            except RpcError as error:
                if error.code is not Code.UNIMPLEMENTED:
                    raise
                if await threads.run_sync(look):
                    raise OSError(
                        f"{driver.name} cannot unstage volumes, and this one is mounted: "
                        f"install a version that can, or unmount {place.path}"
                    ) from error
                log.warning(
                    "driver cannot unstage volumes, and nothing is mounted",
                    volume=place.key.unique_name,
                )

        return unstage

    def _forget(self, place: StagePlace) -> None:
        self._contexts.pop(place, None)
        self._unasked.discard(place)

    async def _driver(self, place: StagePlace, step: str) -> DriverClient:
        try:
            return await self.parts.driver(place.key.driver)
        except NoDriverError as error:
            words = f"kubernetes.io/csi: {step} failed to create newCsiDriverClient: {error}"
            raise NoDriverError(words) from error

    def _left(self) -> LeftStages:
        """Read off the disk which volumes there are, and who uses which. Blocks; raises OSError."""
        stages: dict[VolumeStage, bool] = {}
        for staged in recorded_stages(self.folders.root):
            is_there = is_mounted(staged.path) or bool(mounts_of_staged(staged))
            stages[self.at(staged)] = is_there
            record = stage_record(staged)
            if record is not None and record.is_driver_asked is False:
                self._unasked.add(staged)
        remove_unrecorded_stages(self.folders.root)
        users: list[tuple[str, VolumeStage]] = []
        doubtful: list[tuple[str, str]] = []
        for uid, name, place in recorded_users(self.folders):
            if place is None:
                doubtful.append((uid, name))
            else:
                users.append((uid, self.at(place)))
        return LeftStages(stages, users, doubtful)


@contextmanager
def _errors_of(volume: str, step: str) -> Iterator[None]:
    """Raise what goes wrong in a step as VolumeError, in the words of events."""
    try:
        yield
    except RpcError as error:
        raise VolumeError(volume, rpc_words(error.code, error.message), step) from error
    except (OSError, ObjectError, NoDriverError, RecordError) as error:
        raise VolumeError(volume, str(error), step) from error
