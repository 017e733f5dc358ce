"""Persistent volumes of CSI drivers at the node: attached and staged once for all their pods.

Each volume has a task, which walks the table `STAGE`: it waits until the controller has attached
the volume, has the driver stage it when a pod needs it, and has that undone after the last pod. A
pod counts as a user from before the volume is staged until it was unpublished for it. It does not
wait for the end: a volume goes on being in use, for the controller, too, until it is unstaged.

Record and mark (`csi_records.py`, `doubt_marks.py`) are on the disk before the driver is asked. An
agent that is started anew finds there which volumes are staged, which may be, and which pods use
them. What no pod uses is unstaged then. As long as the file system is mounted anywhere else, it is
not.

A volume that some pods have as a folder and others as a device is staged for each in a place of its
own, by a task of its own; for the controller it is one.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from state_machines.volume import STAGE, StageEvent, StageState
from trio_kubelet.csi import DriverClient
from trio_kubelet.k8s import Node, Pod
from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.rpc import RpcError, rpc_words
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import ALL_PODS, FairLimiter, Share
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.telemetry.journal import Walk
from trio_kubelet.volumes.back_offs import RETRY
from trio_kubelet.volumes.csi_expansion import VolumeExpansions
from trio_kubelet.volumes.csi_records import (
    StagePlace,
    mounts_of_staged,
    recorded_stages,
    recorded_users,
    remove_stage,
    remove_unrecorded_stages,
    stage_place,
    write_stage_record,
)
from trio_kubelet.volumes.csi_republishing import Republications
from trio_kubelet.volumes.csi_requests import (
    STAGES,
    CSIParts,
    CSIRequests,
    NoDriverError,
    volume_key,
)
from trio_kubelet.volumes.doubt_marks import CSI_STAGE_MARKS, DoubtMarks
from trio_kubelet.volumes.folders import FOLDER_MODE, PodFolders, make_folders
from trio_kubelet.volumes.operations import UNMAP_DEVICE, UNMOUNT_DEVICE
from trio_kubelet.volumes.plugin import MAX_THREADS, VolumeBackOff, VolumeError
from trio_kubelet.volumes.resolved import (
    NodeFullError,
    ResolvedVolume,
    UnattachedVolumeError,
)

log = structlog.get_logger("volumes")

ATTACHED_SECONDS = 123.0
"""A pod waits so long for its volumes to be attached; then an event tells, and it waits again."""

_MOUNT_DEVICE, _MAP_DEVICE = "MountVolume.MountDevice", "MapVolume.SetUpDevice"


def next_step(
    state: StageState, *, is_used: bool, is_needed: bool, is_attached: bool
) -> StageEvent | None:
    """Return what is to be done about a volume; None if there is something to wait for.

    `is_used`: by a pod here; `is_needed`: by one for which it is not published.
    """
    if not is_used:
        undone = {
            StageState.WAITING: StageEvent.ABANDON,
            StageState.STAGED: StageEvent.UNSTAGE,
            StageState.UNCERTAIN: StageEvent.UNSTAGE,
        }
        return undone.get(state)
    if not is_needed or state is StageState.STAGED:
        return None
    if is_attached:
        return StageEvent.STAGE
    return StageEvent.AWAIT if state is StageState.UNSTAGED else None


def is_attached(node: Node | None, name: str) -> bool:
    """True if the cluster has attached a volume to a node, and will not take it away again.

    It knows that the node uses the volume, in the same version of the object.
    """
    if node is None or name not in node.status.volumes_in_use:
        return False
    return any(each.name == name for each in node.status.volumes_attached)


@frozen
class _Need:
    """A pod that waits for a volume, as it uses it."""

    pod: Pod
    volume: ResolvedVolume


@define(eq=False)
class _Failure:
    """The last error of a volume, until the next try begins, and which pods were told of it."""

    error: VolumeError
    retry_at: float
    told: set[str] = field(factory=set)

    def tell(self, pod_uid: str) -> VolumeBackOff:
        """Return what to raise for a pod."""
        is_new = pod_uid not in self.told
        self.told.add(pod_uid)
        return VolumeBackOff(self.error, self.retry_at, is_new=is_new)


@define(eq=False)
class _Volume:
    """A volume at the node; its task alone changes the state."""

    place: StagePlace
    walk: Walk[StageState, StageEvent, None]
    users: dict[str, _Need | None] = field(factory=dict)
    """By the UIDs of pods; None where the volume is published already."""
    failure: _Failure | None = None
    attachable: bool | None = None
    """None until it is known."""
    no_room: str = ""
    """Why it cannot be attached, if the node has too many volumes."""
    publish_context: Mapping[str, str] | None = None
    calls: trio.Lock = field(factory=trio.Lock)
    progress: trio.Event = field(factory=trio.Event)
    """Set and renewed whenever pods that wait should look again."""
    changed: trio.Event = field(factory=trio.Event)
    """Set whenever the task should look again."""
    hurry: trio.Event = field(factory=trio.Event)
    """Set if the task is not even to wait for the end of its back-off."""

    @property
    def need(self) -> _Need | None:
        """The first pod for which it is to be staged."""
        return next((each for each in self.users.values() if each is not None), None)

    def tell(self) -> None:
        progress, self.progress = self.progress, trio.Event()
        progress.set()


@define(eq=False)
class StagedVolumes:
    """The persistent volumes of CSI drivers at this node.

    `on_ready` is called with the UID of a pod that may have stopped waiting for a volume which is
    staged now, `on_use` when `in_use` has changed.
    """

    parts: CSIParts
    _folders: PodFolders
    _objects: References | NoReferences
    requests: CSIRequests = field(init=False)
    expansions: VolumeExpansions = field(init=False)
    republications: Republications = field(init=False)
    on_ready: Callbacks[[str]] = field(init=False, factory=Callbacks)
    on_use: Callbacks[[]] = field(init=False, factory=Callbacks)
    _volumes: dict[StagePlace, _Volume] = field(init=False, factory=dict)
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)
    _loaded: trio.Event = field(init=False, factory=trio.Event)
    _threads: Share = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.requests = CSIRequests(self.parts, self._objects)
        self.expansions = VolumeExpansions(self.parts, self.requests, self._objects, self.one_call)
        self.republications = Republications(self.parts.recorder, self.parts.look_seconds)
        self._threads = FairLimiter(MAX_THREADS, MAX_THREADS).share(ALL_PODS)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tend the volumes until cancelled; started when what was left of them is known."""
        stages, users = await self._threads.run_sync(self._left)
        for place, state in stages.items():
            self._add(place, state)
        for uid, place in users:
            self.hold(uid, place)
        self.parts.drivers.on_change.add(self._hurry)
        self._loaded.set()
        self.on_use.call()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.expansions.run)
            await nursery.start(self.republications.run)
            await nursery.start(self._tasks.run)
            task_status.started()

    def in_use(self) -> tuple[str, ...] | None:
        """Return the volumes that must not be detached, as the Node names them.

        None while it is not known which they are.
        """
        if not self._loaded.is_set():
            return None
        used = (each for each in self._volumes.values() if each.attachable is not False)
        return tuple(sorted({each.place.key.unique_name for each in used}))

    def node_changed(self) -> None:
        """Look at the Node object: volumes may have been attached."""
        for volume in self._volumes.values():
            volume.changed.set()

    async def stage(self, pod: Pod, volume: ResolvedVolume) -> None:
        """Return when a volume is staged; the pod is one of its users from now on.

        Raises VolumeBackOff while the next try has to wait, UnattachedVolumeError, and
        NodeFullError. Cancelled or failed, the pod stays a user.
        """
        await self._loaded.wait()
        tended = self._use(self.place(volume), pod.metadata.uid, _Need(pod, volume))
        with trio.move_on_after(ATTACHED_SECONDS):
            while tended.walk.state is not StageState.STAGED:
                failure = tended.failure
                if failure is not None and failure.retry_at > trio.current_time():
                    raise failure.tell(pod.metadata.uid)
                if tended.no_room:
                    raise NodeFullError(volume.name, tended.no_room)
                await tended.progress.wait()
            return
        raise UnattachedVolumeError(volume.name, "context deadline exceeded")

    def place(self, volume: ResolvedVolume) -> StagePlace:
        """Return where a persistent volume is staged."""
        device = volume.spec_name if volume.is_block else ""
        return stage_place(self._folders.root, volume_key(volume, ""), device)

    def hold(self, pod_uid: str, place: StagePlace) -> None:
        """Count a pod as a user for which the volume is published."""
        self._use(place, pod_uid, None)

    def release(self, pod_uid: str) -> None:
        """A pod does not use any volume any more; one that has used none is fine."""
        for volume in self._volumes.values():
            if pod_uid in volume.users:
                del volume.users[pod_uid]
                volume.changed.set()
                if not volume.users:
                    volume.hurry.set()

    def one_call(self, place: StagePlace) -> AbstractAsyncContextManager[None]:
        """Have a volume to oneself: one call about it at a time."""
        volume = self._volumes.get(place)
        return nullcontext() if volume is None else volume.calls

    async def publish_context(self, volume: ResolvedVolume) -> Mapping[str, str]:
        """Return what the attachment of a volume has told; asked for once.

        The volume has users. Raises ObjectError, VolumeError.
        """
        tended = self._volumes[self.place(volume)]
        if tended.publish_context is None:
            attachable = await self._is_attachable(tended, volume)
            key = tended.place.key
            tended.publish_context = await self.requests.publish_context(key) if attachable else {}
        return tended.publish_context

    @property
    def _marks(self) -> DoubtMarks:
        return DoubtMarks(self._folders.root / CSI_STAGE_MARKS)

    def _left(self) -> tuple[dict[StagePlace, StageState], tuple[tuple[str, StagePlace], ...]]:
        """Read off the disk which volumes there are, and who uses which. Blocks; raises OSError."""
        stages = {}
        for place in recorded_stages(self._folders.root):
            key = place.key
            is_there = is_mounted(place.path) or bool(mounts_of_staged(place))
            sure = is_there and not self._marks.is_made(key.driver, key.digest)
            stages[place] = StageState.STAGED if sure else StageState.UNCERTAIN
        remove_unrecorded_stages(self._folders.root)
        self._marks.keep((place.key.driver, place.key.digest) for place in stages)
        return stages, tuple(recorded_users(self._folders))

    def _use(self, place: StagePlace, pod_uid: str, need: _Need | None) -> _Volume:
        """Count a pod as a user; what it has already may be staged, though there is no record."""
        volume = self._volumes.get(place)
        if volume is None:
            volume = self._add(place, StageState.UNSTAGED if need else StageState.UNCERTAIN)
        if not volume.users:
            volume.failure = None
            volume.hurry.set()
        volume.users[pod_uid] = need
        volume.changed.set()
        return volume

    def _add(self, place: StagePlace, state: StageState) -> _Volume:
        walk = Walk(STAGE, state, self.parts.journal, place.key.unique_name)
        volume = self._volumes[place] = _Volume(place, walk)
        self._tasks.start(partial(self._tend, volume))
        self.on_use.call()
        return volume

    def _hurry(self) -> None:
        """Drivers have come or gone: who waits for one tries again."""
        for volume in self._volumes.values():
            volume.hurry.set()

    async def _tend(self, volume: _Volume) -> None:
        """Do what is to be done about a volume, until it is not here any more."""
        retries = Retries(RETRY)
        while volume.users or volume.walk.state is not StageState.UNSTAGED:
            volume.changed, volume.hurry = trio.Event(), trio.Event()
            try:
                step = await self._next_step(volume)
                if step is None:
                    await self._await_change(volume)
                    continue
                volume.no_room = ""
                await self._take(volume, step)
            except VolumeError as error:
                problem = error
            except Exception as error:
                log.exception("volume task failed, will retry", volume=volume.place.key.unique_name)
                problem = VolumeError(volume.place.key.handle, str(error), _MOUNT_DEVICE)
            else:
                retries.reset()
                volume.tell()
                continue
            retries.warn(
                log,
                "volume operation failed, will retry",
                volume=volume.place.key.unique_name,
                error=str(problem),
            )
            wait_seconds = retries.next_seconds()
            volume.failure = _Failure(problem, trio.current_time() + wait_seconds)
            volume.tell()
            with trio.move_on_after(wait_seconds):
                await volume.hurry.wait()
            volume.failure = None
        del self._volumes[volume.place]
        self.on_use.call()

    async def _await_change(self, volume: _Volume) -> None:
        """Wait until there may be something to do; meanwhile look why it is not attached."""
        retries, volume.no_room = Retries(RETRY), ""
        while volume.walk.state is StageState.WAITING:
            with trio.move_on_after(retries.next_seconds()):
                await volume.changed.wait()
                return
            volume.no_room = await self.requests.why_node_is_full(volume.place.key)
            if volume.no_room:
                volume.tell()
        await volume.changed.wait()

    async def _next_step(self, volume: _Volume) -> StageEvent | None:
        """See the function of this name. Raises VolumeError if it is not known what is needed."""
        attached = False
        if volume.need is not None:
            name, node = volume.place.key.unique_name, self.parts.node_object()
            attachable = await self._is_attachable(volume, volume.need.volume)
            attached = not attachable or is_attached(node, name)
        return next_step(
            volume.walk.state,
            is_used=bool(volume.users),
            is_needed=volume.need is not None,
            is_attached=attached,
        )

    async def _is_attachable(self, volume: _Volume, needed: ResolvedVolume) -> bool:
        """True if a controller attaches the volume to nodes. Raises VolumeError."""
        if volume.attachable is None:
            spec = await self.requests.driver_settings(needed)
            volume.attachable = spec.attach_required is not False
            self.on_use.call()
        return volume.attachable

    async def _take(self, volume: _Volume, step: StageEvent) -> None:
        """Take one step; raises VolumeError."""
        if step not in (StageEvent.STAGE, StageEvent.UNSTAGE):
            volume.walk.step(step)
            return
        async with volume.calls:
            need = volume.need
            if step is StageEvent.UNSTAGE:
                plugin = self.parts.shown_plugin(volume.place.key.driver)
                name = UNMOUNT_DEVICE if volume.place.device is None else UNMAP_DEVICE
                with self.parts.operations.measured(plugin, name):
                    await self._unstage(volume)
            elif need is not None:
                await self._stage(volume, need)
                for uid in volume.users:
                    self.on_ready.call(uid)

    async def _stage(self, volume: _Volume, need: _Need) -> None:
        name, place = need.volume.spec_name, volume.place
        with _errors_of(name, _MAP_DEVICE if place.device is not None else _MOUNT_DEVICE):
            driver = await self._driver(place, "attacher.MountDevice")
            capabilities = await driver.capabilities()
            context = await self.publish_context(need.volume)
            request = await self.requests.staging(
                need.pod, need.volume, capabilities, context, place.path
            )
            # The record is first: without one nobody would remove the folder.
            await self._threads.run_sync(partial(write_stage_record, place, self.parts.node))
            await self._threads.run_sync(partial(make_folders, place.path, FOLDER_MODE))

            async def stage() -> None:
                if STAGES in capabilities:
                    await driver.stage(request)

            await self._call(volume, StageEvent.STAGE, stage)

    async def _unstage(self, volume: _Volume) -> None:
        place = volume.place
        with _errors_of(place.key.handle, "UnmountDevice"):
            driver = await self._driver(place, "attacher.UnmountDevice")
            capabilities = await driver.capabilities()
            others = await self._threads.run_sync(partial(mounts_of_staged, place))
            if others:
                shown = " ".join(map(str, others))
                raise OSError(
                    f"The device mount path {str(place.path)!r} is still mounted by other "
                    f"references [{shown}]"
                )

            async def unstage() -> None:
                if STAGES in capabilities:
                    await driver.unstage(place.key.handle, str(place.path))
                await self._threads.run_sync(partial(remove_stage, place))

            await self._call(volume, StageEvent.UNSTAGE, unstage)
            volume.publish_context = None

    async def _driver(self, place: StagePlace, step: str) -> DriverClient:
        try:
            return await self.parts.driver(place.key.driver)
        except NoDriverError as error:
            words = f"kubernetes.io/csi: {step} failed to create newCsiDriverClient: {error}"
            raise NoDriverError(words) from error

    async def _call(
        self, volume: _Volume, begins: StageEvent, call: Callable[[], Awaitable[None]]
    ) -> None:
        """Make a call that changes the volume, and walk its states. Raises RpcError, OSError."""
        owner, digest = volume.place.key.driver, volume.place.key.digest
        await self._threads.run_sync(partial(self._marks.make, owner, digest))
        volume.walk.step(begins)
        try:
            await call()
        except BaseException:
            volume.walk.step(StageEvent.FAILED)
            raise
        volume.walk.step(StageEvent.SUCCEEDED)
        await self._threads.run_sync(partial(self._marks.remove, owner, digest))


@contextmanager
def _errors_of(volume: str, step: str) -> Iterator[None]:
    """Raise what goes wrong in a step as VolumeError, in the words of events."""
    try:
        yield
    except RpcError as error:
        raise VolumeError(volume, rpc_words(error.code, error.message), step) from error
    except (OSError, ObjectError, NoDriverError) as error:
        raise VolumeError(volume, str(error), step) from error
