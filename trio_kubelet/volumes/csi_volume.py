"""Volumes of CSI drivers in pods: those that a driver makes for one pod, and persistent ones.

Before the driver is asked for anything, the volume's record and a mark are on the disk
(`csi_records.py`, `doubt_marks.py`); the mark goes when the driver has answered that it is done. So
an agent that is started anew knows which volumes are published, which it has to ask for again, and
which it has to give back. The driver takes its mount away itself, before the node removes what is
left. A driver that is not registered is waited for: a volume of it is neither given up nor torn
off.

A persistent volume is staged for all its pods first (`staged_volumes.py`). The rows of
`state_machines/volume.py` say which call may follow which.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import define, evolve, field

from state_machines.volume import VOLUME, VolumeEvent, VolumeState
from trio_kubelet.csi import DriverClient, Publication, UnknownSettingsError, VolumeOfPod
from trio_kubelet.k8s import CSIDriverSpec, Pod
from trio_kubelet.kernel.mountinfo import is_mounted, takes_labels
from trio_kubelet.references import ObjectError
from trio_kubelet.rpc import RpcError, rpc_words
from trio_kubelet.tasks.fair_limiter import Share
from trio_kubelet.telemetry.journal import Walk
from trio_kubelet.volumes.back_offs import BackOffs, Key
from trio_kubelet.volumes.csi_expansion import VolumeExpansions, VolumeInUse
from trio_kubelet.volumes.csi_places import Published, PublishedDevice, PublishedFolder
from trio_kubelet.volumes.csi_records import (
    EPHEMERAL,
    PERSISTENT,
    PLUGIN,
    DeviceFolders,
    RecordError,
    ReplacedFolderError,
    VolumeKey,
    VolumeRecord,
    device_names,
    remove_record,
    require_own,
    stage_place,
)
from trio_kubelet.volumes.csi_republishing import Republications
from trio_kubelet.volumes.csi_requests import (
    Capabilities,
    CSIParts,
    CSIRequests,
    NoDriverError,
    is_owned_by_node,
    volume_key,
)
from trio_kubelet.volumes.csi_stages import CSIStages
from trio_kubelet.volumes.devices import tell_mapped
from trio_kubelet.volumes.doubt_marks import CSI_MARKS, DoubtMarks
from trio_kubelet.volumes.folders import PodFolders, plugin_folder
from trio_kubelet.volumes.operations import UNMAP, UNMOUNT
from trio_kubelet.volumes.ownership import VolumeOwnership
from trio_kubelet.volumes.plugin import MountedVolume, VolumeBusy, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import ResolvedVolume, claim_name
from trio_kubelet.volumes.staged_volumes import StagedVolumes

log = structlog.get_logger("volumes")


@define(eq=False)
class _VolumeOfName:
    """The volume that a pod has under a name, one call about it at a time."""

    walk: Walk[VolumeState, VolumeEvent, None]
    begun: VolumeKey | None
    """The one for which there is a record, or was."""
    is_recorded: bool = True
    """False if its record could not be read, and another one is to be written."""
    calls: trio.Lock = field(init=False, factory=trio.Lock)

    @property
    def is_published(self) -> bool:
        """True if there is nothing to ask the driver for."""
        return self.walk.state is VolumeState.PUBLISHED

    def require(self, place: Published, wanted: VolumeKey) -> None:
        """Raise RecordError if the driver has, or may have, published another volume here."""
        if self.walk.state is not VolumeState.UNPUBLISHED:
            require_own(place.target.parent, self.begun, wanted)


@define(eq=False)
class CSIVolumes:
    """The plugin for the source `csi`, of pods and of persistent volumes."""

    _stages: CSIStages
    _threads: VolumeThreads
    _staged: StagedVolumes = field(init=False)
    _folders: PodFolders = field(init=False)
    _parts: CSIParts = field(init=False)
    _requests: CSIRequests = field(init=False)
    _expansions: VolumeExpansions = field(init=False)
    _republications: Republications = field(init=False)
    _ownership: VolumeOwnership = field(init=False)
    _volumes: dict[Key, _VolumeOfName] = field(init=False, factory=dict)
    _back_offs: BackOffs = field(init=False, factory=BackOffs)

    name = PLUGIN

    def __attrs_post_init__(self) -> None:
        stages = self._stages
        self._staged, self._folders = stages.volumes, stages.folders
        self._parts, self._requests = stages.parts, stages.requests
        self._expansions, self._republications = stages.expansions, stages.republications
        self._ownership = VolumeOwnership(self._threads.owning, self._parts.recorder)
        self._parts.drivers.on_change.add(self._hurry)

    async def set_up(self, pod: Pod, volume: ResolvedVolume) -> MountedVolume:
        """Have the driver publish the volume, unless it has; raises VolumeError, VolumeBackOff.

        Raises UnattachedVolumeError, too. Cancelled, the volume is uncertain: the next call asks
        again, or `unpublish` gives it back. A secret of the pod that is missing is no reason to
        back off: the pod is woken when it comes.
        """
        uid, share = pod.metadata.uid, self._threads.preparing.share_of(pod.metadata)
        place, step = self._place(uid, volume), "MountVolume.SetUp"
        mounted = MountedVolume(
            name=volume.name, host_path=str(place.target), read_only=volume.read_only
        )
        if isinstance(place, PublishedDevice):
            step = "MapVolume.MapPodDevice"
            mounted = evolve(mounted, host_path="", device=str(place.link))
        key = uid, place.name
        self._back_offs.check(key)
        try:
            known = await self._look(key, place, share, _assumed(pod, volume))
            known.require(place, volume_key(volume, uid))
            if not known.is_recorded:
                await share.run_sync(partial(place.begin, self._record(place, volume, uid)))
                known.is_recorded = True
            is_new = not known.is_published
            if is_new:
                await self._publish(pod, volume, place, share)
                self._back_offs.succeeded(key)
            relabels = await self._relabels(place, volume, share)
        except VolumeError as error:
            raise self._back_offs.failed(key, error) from error
        except (RpcError, OSError, ObjectError, RecordError) as error:
            failure = VolumeError(volume.spec_name, _words(error), step)
            if isinstance(error, ObjectError) and volume.persistent is None:
                raise failure from error
            raise self._back_offs.failed(key, failure) from error
        mounted = evolve(mounted, selinux_relabel=relabels)
        if volume.persistent is not None:
            self._staged.hold(uid, self._stages.stage(volume))
        self._staged.settle(uid, place.name)
        self._look_after(pod, volume, place)
        if await self._wants_republishing(volume):
            republish = partial(self._republish, pod, volume, place, step)
            self._republications.follow(key, pod, republish, at_once=not is_new)
        else:
            self._republications.end(key)
        return mounted

    async def _relabels(self, place: Published, volume: ResolvedVolume, threads: Share) -> bool:
        """True if the runtime is to label a volume's files for the pod. Raises OSError."""
        if not self._parts.selinux or volume.is_block or volume.read_only:
            return False
        return await threads.run_sync(partial(takes_labels, place.target))

    def shown_plugin(self, volume: ResolvedVolume) -> str:
        """Return the plugin's name in metrics for a volume."""
        return self._parts.shown_plugin(volume_key(volume, "").driver)

    async def published(self, pod_uid: str, threads: Share) -> Sequence[Published]:
        """Return what drivers have published for a pod, or were to. Raises OSError."""
        return await threads.run_sync(partial(self._published, pod_uid))

    async def unpublish(self, pod_uid: str, place: Published, threads: Share) -> None:
        """Have the driver take a volume away; one that nobody asked it for is fine.

        Raises VolumeBusy while that cannot be done, OSError.
        """
        key = pod_uid, place.name
        self._parts.usages.unpublished(pod_uid, str(place.target))
        self._expansions.unpublished(pod_uid, str(place.target))
        self._republications.end(key)
        try:
            found = await threads.run_sync(place.key)
        except RecordError as error:
            found = await self._key_without_record(key, place, error, threads)
        if found is None:
            return
        name = UNMAP if isinstance(place, PublishedDevice) else UNMOUNT
        with self._parts.operations.measured(self._parts.shown_plugin(found.driver), name):
            await self._unpublish(key, place, found, threads)

    async def _key_without_record(
        self, key: Key, place: Published, problem: RecordError, threads: Share
    ) -> VolumeKey | None:
        """Return the volume of a record that cannot be read; None if nothing is mounted of it.

        It is known from before, or by its mount. Raises VolumeBusy, OSError.
        """
        if isinstance(problem, ReplacedFolderError):
            raise VolumeBusy(place.target.parent, str(problem)) from problem
        known = self._volumes.get(key)
        if known is not None and known.begun is not None:
            return known.begun
        if isinstance(place, PublishedDevice):
            raise VolumeBusy(place.target.parent, str(problem)) from problem
        found = await threads.run_sync(partial(place.key_by_mount, self._folders.root))
        if found is not None:
            return found
        if await threads.run_sync(place.forget_if_gone):
            log.warning(
                "volume is not mounted and its record not readable, no driver is asked to "
                "unpublish it",
                error=str(problem),
            )
            return None
        words = f"nobody knows which driver has mounted it, so unmount it: {problem}"
        raise VolumeBusy(place.target, words) from problem

    async def _unpublish(
        self, key: Key, place: Published, found: VolumeKey, threads: Share
    ) -> None:
        """Have the driver take a volume away that it was asked for. Raises as `unpublish`."""
        try:
            if isinstance(place, PublishedDevice):
                await threads.run_sync(place.undo)
            known = await self._look(key, place, threads, found)
            if known.walk.state is VolumeState.UNPUBLISHED:
                return
            driver = await self._driver(found.driver, place.name, "Unmounter.TearDownAt")
        except (RecordError, VolumeError) as error:
            why = error.why if isinstance(error, VolumeError) else str(error)
            raise VolumeBusy(place.target.parent, why) from error
        call = partial(driver.unpublish, found.handle, str(place.target))
        device = place.name if isinstance(place, PublishedDevice) else ""
        staged = self._stages.at(stage_place(self._folders.root, found, device))
        try:
            async with known.calls, self._staged.one_call(staged):
                await self._call(key, VolumeEvent.UNPUBLISH, call, threads)
        except RpcError as error:
            raise VolumeBusy(place.target, rpc_words(error.code, error.message)) from error

    async def tear_down(self, pod_uid: str, folder: Path, threads: Share) -> None:
        """Remove record and mark of a volume that was given back; raises OSError."""
        known = self._volumes.get((pod_uid, folder.name))
        given_back = known is not None and known.walk.state is VolumeState.UNPUBLISHED
        await threads.run_sync(partial(remove_record, folder, given_back=given_back))
        await threads.run_sync(partial(self._marks.remove, pod_uid, folder.name))
        self._volumes.pop((pod_uid, folder.name), None)

    def release(self, pod_uid: str) -> None:
        """A pod has no volumes any more, not even such as were to be published."""
        self._back_offs.forget(pod_uid)
        self._parts.usages.unpublished(pod_uid)
        self._expansions.unpublished(pod_uid)
        self._republications.forget(pod_uid)
        for key in [key for key in self._volumes if key[0] == pod_uid]:
            del self._volumes[key]
        self._staged.release(pod_uid)

    @property
    def _marks(self) -> DoubtMarks:
        return DoubtMarks(self._folders.root / CSI_MARKS)

    def _hurry(self) -> None:
        """Drivers have come or gone: the pods that wait for one try again."""
        for uid in self._back_offs.hurry():
            self._staged.on_ready.call(uid)

    def _place(self, pod_uid: str, volume: ResolvedVolume) -> Published:
        if volume.is_block:
            return self._device(pod_uid, volume.spec_name)
        return PublishedFolder(self._folders.volume(pod_uid, self.name, volume.spec_name))

    def _device(self, pod_uid: str, name: str) -> PublishedDevice:
        link = self._folders.device(pod_uid, self.name, name)
        return PublishedDevice(name, link, pod_uid, DeviceFolders(self._folders.root, name))

    def _published(self, pod_uid: str) -> Sequence[Published]:
        folder = self._folders.volumes(pod_uid) / plugin_folder(self.name)
        names = device_names(self._folders, pod_uid)
        return (
            *(PublishedFolder(each) for each in folder.glob("*")),
            *(self._device(pod_uid, name) for name in names),
        )

    async def _publish(
        self, pod: Pod, volume: ResolvedVolume, place: Published, threads: Share
    ) -> None:
        """Have a volume mounted, after it is staged. Raises what `set_up` makes errors of."""
        uid, key = pod.metadata.uid, volume_key(volume, pod.metadata.uid)
        if volume.persistent is not None:
            await self._staged.stage(pod, volume, self._stages.stage(volume))
        driver = await self._driver(key.driver, volume.spec_name, "mounter.SetUpAt")
        spec = await self._requests.driver_settings(volume)
        capabilities = await driver.capabilities()
        if volume.persistent is not None and self._stages.is_outdated(volume, capabilities):
            await self._staged.renew(pod, volume, self._stages.stage(volume))
        publication = await self._publication(pod, volume, spec, capabilities, place.target)
        record = self._record(place, volume, uid)
        may_give = self._parts.privileged and not (publication.read_only or volume.is_block)
        owned_here = may_give and is_owned_by_node(volume, spec, capabilities)
        used = self._in_use(pod, volume, place)
        expansion = None if used is None else await self._expansions.wanted(used)

        async def publish() -> None:
            await driver.publish(publication)
            await threads.run_sync(place.finish)
            if owned_here:
                await self._ownership.give(pod, place.target, volume.spec_name)
            if used is not None and expansion is not None:
                await self._expansions.expand_new(used, expansion)

        known = self._volumes[uid, place.name]
        async with known.calls, self._staged.one_call(self._stages.stage(volume)):
            # Two volumes of a pod may have the same claim, or names that are the same, and are set
            # up at the same time.
            known.require(place, key)
            if known.is_published:
                return
            await threads.run_sync(partial(place.begin, record))
            known.begun = key
            await self._call((uid, place.name), VolumeEvent.PUBLISH, publish, threads)
        if isinstance(place, PublishedDevice):
            tell_mapped(self._parts.recorder, pod, place.name, place.devices.users, place.link)

    def _record(self, place: Published, volume: ResolvedVolume, pod_uid: str) -> VolumeRecord:
        return VolumeRecord(
            name=place.name,
            key=volume_key(volume, pod_uid),
            node=self._parts.node,
            lifecycle_mode=EPHEMERAL if volume.persistent is None else PERSISTENT,
        )

    def _in_use(self, pod: Pod, volume: ResolvedVolume, place: Published) -> VolumeInUse | None:
        """Return what is to be known of a volume that may grow; None if it is the pod's own."""
        if volume.persistent is None:
            return None
        staged = self._stages.stage(volume).place
        return VolumeInUse(pod=pod, volume=volume, path=str(place.target), place=staged)

    def _look_after(self, pod: Pod, volume: ResolvedVolume, place: Published) -> None:
        """Have the driver asked for the space of a volume that is published, and for more."""
        used = self._in_use(pod, volume, place)
        if used is not None:
            self._expansions.published(used)
        key = volume_key(volume, pod.metadata.uid)
        measured = VolumeOfPod(
            driver=key.driver,
            volume_id=key.handle,
            path=str(place.target),
            pod_uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=volume.name,
            staging_path="" if used is None else str(used.place.path),
            claim=claim_name(pod, volume.volume),
        )
        self._parts.usages.published(measured)

    async def _wants_republishing(self, volume: ResolvedVolume) -> bool:
        """True if the volume's driver wants to be asked again; not if that is not known."""
        try:
            spec = await self._parts.settings.get(volume_key(volume, "").driver)
        except UnknownSettingsError:
            return False
        return bool(spec.requires_republish)

    async def _republish(
        self, pod: Pod, volume: ResolvedVolume, place: Published, step: str
    ) -> None:
        """Publish a volume once more, if its driver is there. Raises VolumeError."""
        staged = self._stages.stage(volume)
        driver = self._parts.drivers.get(staged.place.key.driver)
        if driver is None:
            return
        try:
            spec = await self._requests.driver_settings(volume)
            capabilities = await driver.capabilities()
            publication = await self._publication(pod, volume, spec, capabilities, place.target)
            known = self._volumes[pod.metadata.uid, place.name]
            async with known.calls, self._staged.one_call(staged):
                known.walk.step(VolumeEvent.REPUBLISH)
                await driver.publish(publication)
        except (RpcError, ObjectError) as error:
            raise VolumeError(volume.spec_name, _words(error), step) from error

    async def _publication(
        self,
        pod: Pod,
        volume: ResolvedVolume,
        spec: CSIDriverSpec,
        capabilities: Capabilities,
        target: Path,
    ) -> Publication:
        """Gather what the driver is told. Raises ObjectError, VolumeError."""
        told = await self._requests.publication(pod, volume, spec, capabilities, target)
        if volume.persistent is None:
            return told
        return evolve(
            told,
            staging_path=self._stages.staging_path(volume, capabilities),
            publish_context=await self._stages.publish_context(volume),
        )

    async def _driver(self, name: str, volume: str, step: str) -> DriverClient:
        """Return a driver, for which it waits a little. Raises VolumeError."""
        try:
            return await self._parts.driver(name)
        except NoDriverError as error:
            words = f"kubernetes.io/csi: {step} failed to get CSI client: {error}"
            raise VolumeError(volume, words) from error

    async def _look(
        self, key: Key, place: Published, threads: Share, assumed: VolumeKey | None
    ) -> _VolumeOfName:
        """Return what is known of a volume; of one that another agent began, its traces tell.

        It is the one that is assumed if its record cannot be read. Raises RecordError without, and
        if its folder is another one.
        """
        if key not in self._volumes:
            found = await threads.run_sync(partial(self._found, key, place, assumed))
            self._volumes.setdefault(key, found)
        return self._volumes[key]

    def _found(self, key: Key, place: Published, assumed: VolumeKey | None) -> _VolumeOfName:
        is_recorded, state = True, VolumeState.PUBLISHED
        try:
            begun = place.key()
        except RecordError as error:
            if assumed is None or isinstance(error, ReplacedFolderError):
                raise
            log.warning("volume record is not readable, the pod tells its volume", error=str(error))
            begun, is_recorded = assumed, False
        if begun is None:
            state = VolumeState.UNPUBLISHED
        elif self._marks.is_made(*key) or not is_mounted(place.target):
            state = VolumeState.UNCERTAIN
        walk = Walk(VOLUME, state, self._parts.journal, "/".join(key), notes_all=True)
        return _VolumeOfName(walk, begun, is_recorded)

    async def _call(
        self, key: Key, begins: VolumeEvent, call: Callable[[], Awaitable[None]], threads: Share
    ) -> None:
        """Make a call that changes the volume, and walk its states. Raises RpcError, OSError."""
        undoes = begins is VolumeEvent.UNPUBLISH
        make = self._marks.make_if_room if undoes else self._marks.make
        await threads.run_sync(partial(make, *key))
        walk = self._volumes[key].walk
        walk.step(begins)
        try:
            await call()
        except BaseException:
            walk.step(VolumeEvent.FAILED)
            raise
        walk.step(VolumeEvent.SUCCEEDED)
        await threads.run_sync(partial(self._marks.remove, *key))


def _assumed(pod: Pod, volume: ResolvedVolume) -> VolumeKey | None:
    """Return the volume that a pod's folder is for if its record cannot be read.

    None for a device, whose place is others', too, and where two volumes of the pod have one name.
    """
    is_own = volume.persistent is None
    namesakes = (
        each.csi is not None and each.name == volume.spec_name for each in pod.spec.volumes
    )
    if volume.is_block or any(namesakes) is not is_own:
        return None
    return volume_key(volume, pod.metadata.uid)


def _words(error: Exception) -> str:
    return rpc_words(error.code, error.message) if isinstance(error, RpcError) else str(error)
