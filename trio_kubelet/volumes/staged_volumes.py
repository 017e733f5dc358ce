"""Volumes that the node has once for all their pods: attached, staged, undone after the last.

Each volume has a task, which walks the table `STAGE`: it waits until the controller has attached
the volume, has it staged when a pod needs it, and has that undone after the last pod. How that is
done is up to its kind (`csi_stages.py`, `disk_stages.py`). A pod counts as a user from before the
volume is staged until it was unmounted for it. It does not wait for the end: a volume goes on being
in use, for the controller, too, until it is unstaged.

The kind's record and the mark (`doubt_marks.py`) are on the disk before a stage is begun. An
agent that is started anew finds there which volumes are staged, which may be, and which pods use
them. What no pod uses is unstaged then.

A volume that some pods have as a folder and others as a device is staged for each in a place of its
own, by a task of its own; for the controller it is one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import structlog
import trio
from attrs import define, field, frozen

from state_machines.volume import STAGE, StageEvent, StageState
from trio_kubelet.k8s import Node, Pod
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import ALL_PODS, FairLimiter, Share
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.telemetry import Journal
from trio_kubelet.telemetry.journal import Walk
from trio_kubelet.volumes.back_offs import RETRY
from trio_kubelet.volumes.doubt_marks import STAGE_MARKS, DoubtMarks
from trio_kubelet.volumes.names_in_use import NamesInUse
from trio_kubelet.volumes.operations import VolumeOperations
from trio_kubelet.volumes.plugin import VolumeBackOff, VolumeError, thread_limiter
from trio_kubelet.volumes.resolved import (
    NodeFullError,
    ResolvedVolume,
    UnattachedVolumeError,
)
from trio_kubelet.volumes.volume_stage import LeftStages, VolumeStage, Work

log = structlog.get_logger("volumes")

ATTACHED_SECONDS = 123.0
"""A pod waits so long for its volumes to be attached; then an event tells, and it waits again."""


def next_step(
    state: StageState,
    *,
    is_used: bool,
    is_needed: bool,
    is_attached: bool,
    is_outdated: bool = False,
) -> StageEvent | None:
    """Return what is to be done about a volume; None if there is something to wait for.

    `is_used`: by a pod here; `is_needed`: by one for which it is not published. `is_outdated`: it
    is staged as its driver wanted that once, and not as it wants it now.
    """
    if not is_used:
        undone = {
            StageState.WAITING: StageEvent.ABANDON,
            StageState.STAGED: StageEvent.UNSTAGE,
            StageState.UNCERTAIN: StageEvent.UNSTAGE,
        }
        return undone.get(state)
    if not is_needed or (state is StageState.STAGED and not is_outdated):
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

    stage: VolumeStage
    walk: Walk[StageState, StageEvent, None]
    calls: trio.Lock
    users: dict[str, _Need | None] = field(factory=dict)
    """By the UIDs of pods; None where the volume is published already."""
    doubtful: set[tuple[str, str]] = field(factory=set)
    """The volumes of pods, by UIDs and names, of which it is not known whether they are this."""
    failure: _Failure | None = None
    namespace: str = ALL_PODS
    """Of the last pod that it was staged for: nobody else waits while it hangs."""
    attachable: bool | None = None
    """None until it is known."""
    is_outdated: bool = False
    """It is to be staged once more, though it is staged."""
    has_record: bool = False
    """Something of it may be on the disk since its staging was begun, whatever its state."""
    no_room: str = ""
    """Why it cannot be attached, if the node has too many volumes."""
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

    @property
    def is_over(self) -> bool:
        """True if nobody needs it, and nobody was asked to stage it, or that is undone."""
        return not self.users and self.walk.state is StageState.UNSTAGED

    def settle(self, known: Sequence[tuple[str, str]]) -> None:
        """Some volumes of pods are known to be this, or not."""
        if not self.doubtful.isdisjoint(known):
            self.doubtful.difference_update(known)
            self.changed.set()

    def tell(self) -> None:
        progress, self.progress = self.progress, trio.Event()
        progress.set()


@define(eq=False)
class StagedVolumes:
    """The volumes at this node that are staged, of all kinds.

    `on_ready` is called with the UID of a pod that may have stopped waiting for a volume which is
    staged now, `on_use` when `in_use` has changed. `kinds` read off the disk what is left of each
    kind; they block, and raise OSError.
    """

    root: Path
    """The root folder."""
    _journal: Journal
    _node_object: Callable[[], Node | None]
    operations: VolumeOperations
    kinds: list[Callable[[], LeftStages]] = field(init=False, factory=list)
    on_ready: Callbacks[[str]] = field(init=False, factory=Callbacks)
    on_use: Callbacks[[]] = field(init=False, factory=Callbacks)
    _volumes: dict[VolumeStage, _Volume] = field(init=False, factory=dict)
    _calls: WeakValueDictionary[str, trio.Lock] = field(
        init=False, factory=WeakValueDictionary[str, trio.Lock]
    )
    """By places."""
    _names: NamesInUse = field(init=False, factory=NamesInUse)
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)
    _loaded: trio.Event = field(init=False, factory=trio.Event)
    staging: FairLimiter = field(init=False, factory=thread_limiter)
    unstaging: FairLimiter = field(init=False, factory=thread_limiter)
    """Apart: a disk that is gone hangs when it is unmounted, and no other is to wait for it."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tend the volumes until cancelled; started when what was left of them is known."""
        left = await self.staging.share(ALL_PODS).run_sync(self._left)
        for each in left:
            for stage, is_sure in each.stages.items():
                self._add(stage, StageState.STAGED if is_sure else StageState.UNCERTAIN)
                self._volumes[stage].doubtful.update(each.doubtful)
            for uid, stage in each.users:
                self.hold(uid, stage)
        self._loaded.set()
        self.on_use.call()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._tasks.run)
            task_status.started()

    def in_use(self) -> tuple[str, ...] | None:
        """Return the volumes that must not be detached, as the Node names them.

        None while it is not known which they are.
        """
        if not self._loaded.is_set():
            return None
        used = (each for each in self._volumes.values() if each.attachable is not False)
        return tuple(sorted({each.stage.unique_name for each in used}))

    def node_changed(self) -> None:
        """Look at the Node object: volumes may have been attached."""
        for volume in self._volumes.values():
            volume.changed.set()

    async def stage(self, pod: Pod, volume: ResolvedVolume, stage: VolumeStage) -> None:
        """Return when a volume is staged; the pod is one of its users from now on.

        Raises VolumeBackOff while the next try has to wait, UnattachedVolumeError, and
        NodeFullError. Cancelled or failed, the pod stays a user. Raises VolumeError as
        `require_room`, and the pod is none.
        """
        await self._loaded.wait()
        self.require_room(pod, volume, stage)
        tended = self._use(stage, pod.metadata.uid, _Need(pod, volume))
        with trio.move_on_after(ATTACHED_SECONDS):
            while tended.walk.state is not StageState.STAGED or tended.is_outdated:
                failure = tended.failure
                if failure is not None and failure.retry_at > trio.current_time():
                    raise failure.tell(pod.metadata.uid)
                if tended.no_room:
                    raise NodeFullError(volume.name, tended.no_room)
                await tended.progress.wait()
            return
        raise UnattachedVolumeError(volume.name, "context deadline exceeded")

    async def renew(self, pod: Pod, volume: ResolvedVolume, stage: VolumeStage) -> None:
        """Return when a volume is staged once more, as its driver wants it now; as `stage`."""
        self._use(stage, pod.metadata.uid, _Need(pod, volume)).is_outdated = True
        await self.stage(pod, volume, stage)

    def require_room(self, pod: Pod, volume: ResolvedVolume, stage: VolumeStage) -> None:
        """Raise VolumeError if the Node has no room for the name of a volume that is not here."""
        if stage.may_be_attachable and stage not in self._volumes:
            self._names.require_room(volume.spec_name, stage.unique_name, pod.metadata.namespace)

    def hold(self, pod_uid: str, stage: VolumeStage) -> None:
        """Count a pod as a user for which the volume is mounted."""
        self._use(stage, pod_uid, None)

    def release(self, pod_uid: str) -> None:
        """A pod does not use any volume any more; one that has used none is fine."""
        for volume in self._volumes.values():
            volume.settle([each for each in volume.doubtful if each[0] == pod_uid])
            if pod_uid in volume.users:
                del volume.users[pod_uid]
                volume.changed.set()
                if not volume.users:
                    volume.hurry.set()

    def settle(self, pod_uid: str, name: str) -> None:
        """It is known which volume a pod has under a name; it is held, if it is staged."""
        for volume in self._volumes.values():
            volume.settle([(pod_uid, name)])

    def one_call(self, stage: VolumeStage) -> AbstractAsyncContextManager[None]:
        """Have a volume, and its place, to oneself: one call about it at a time."""
        volume = self._volumes.get(stage)
        return nullcontext() if volume is None else volume.calls

    def hurry(self) -> None:
        """Let volumes that have failed be tried at once: what they wait for may have come."""
        for volume in self._volumes.values():
            volume.hurry.set()

    @property
    def _marks(self) -> DoubtMarks:
        return DoubtMarks(self.root / STAGE_MARKS)

    def _left(self) -> Sequence[LeftStages]:
        """Read off the disk which volumes there are, and who uses which. Blocks; raises OSError."""
        left = [look() for look in self.kinds]
        found = {stage: sure for each in left for stage, sure in each.stages.items()}
        self._marks.keep(stage.mark for stage in found)
        doubted = {stage for stage in found if self._marks.is_made(*stage.mark)}
        return [
            LeftStages(
                {s: sure and s not in doubted for s, sure in each.stages.items()},
                each.users,
                each.doubtful,
            )
            for each in left
        ]

    def _use(self, stage: VolumeStage, pod_uid: str, need: _Need | None) -> _Volume:
        """Count a pod as a user; what it has already may be staged, though there is no record."""
        volume = self._volumes.get(stage)
        if volume is None:
            volume = self._add(stage, StageState.UNSTAGED if need else StageState.UNCERTAIN)
        if not volume.users:
            volume.failure = None
            volume.hurry.set()
        volume.users[pod_uid] = need
        if need is not None:
            volume.namespace = need.pod.metadata.namespace
            if volume.attachable is not False:
                self._names.count(stage, stage.unique_name, volume.namespace)
        volume.changed.set()
        return volume

    def _add(self, stage: VolumeStage, state: StageState) -> _Volume:
        walk = Walk(STAGE, state, self._journal, stage.unique_name)
        calls = self._calls.setdefault(stage.place_name, trio.Lock())
        volume = self._volumes[stage] = _Volume(stage, walk, calls)
        if stage.may_be_attachable:
            self._names.count(stage, stage.unique_name, volume.namespace)
        else:
            volume.attachable = False
        self._tasks.start(partial(self._tend, volume))
        self.on_use.call()
        return volume

    async def _tend(self, volume: _Volume) -> None:
        """Do what is to be done about a volume, until it is not here any more."""
        retries = Retries(RETRY)
        while volume.has_record or not volume.is_over:
            volume.changed, volume.hurry = trio.Event(), trio.Event()
            try:
                step = await self._next_step(volume)
                if step is None and not volume.is_over:
                    await self._await_change(volume)
                    continue
                volume.no_room = ""
                await (self._discard(volume) if step is None else self._take(volume, step))
            except VolumeError as error:
                problem = error
            except OSError as error:  # Of the mark: the disk may be full.
                name = volume.stage.unique_name
                problem = VolumeError(name, str(error), "MountVolume.MountDevice")
            except Exception as error:
                name = volume.stage.unique_name
                log.exception("volume task failed, will retry", volume=name)
                problem = VolumeError(name, str(error), "MountVolume.MountDevice")
            else:
                retries.reset()
                volume.tell()
                continue
            retries.warn(
                log,
                "volume operation failed, will retry",
                volume=volume.stage.unique_name,
                error=str(problem),
            )
            wait_seconds = retries.next_seconds()
            volume.failure = _Failure(problem, trio.current_time() + wait_seconds)
            volume.tell()
            with trio.move_on_after(wait_seconds):
                await volume.hurry.wait()
            volume.failure = None
        del self._volumes[volume.stage]
        self._names.forget(volume.stage)
        self.on_use.call()

    async def _await_change(self, volume: _Volume) -> None:
        """Wait until there may be something to do; meanwhile look why it is not attached."""
        retries, volume.no_room = Retries(RETRY), ""
        while volume.walk.state is StageState.WAITING:
            with trio.move_on_after(retries.next_seconds()):
                await volume.changed.wait()
                return
            volume.no_room = await volume.stage.why_node_is_full()
            if volume.no_room:
                volume.tell()
        await volume.changed.wait()

    async def _next_step(self, volume: _Volume) -> StageEvent | None:
        """See the function of this name. Raises VolumeError if it is not known what is needed."""
        attached = False
        if volume.need is not None:
            name, node = volume.stage.unique_name, self._node_object()
            attachable = await self._is_attachable(volume, volume.need.volume)
            attached = not attachable or is_attached(node, name)
        return next_step(
            volume.walk.state,
            is_used=bool(volume.users or volume.doubtful),
            is_needed=volume.need is not None,
            is_attached=attached,
            is_outdated=volume.is_outdated,
        )

    async def _is_attachable(self, volume: _Volume, needed: ResolvedVolume) -> bool:
        """True if a controller attaches the volume to nodes. Raises VolumeError."""
        if volume.attachable is None:
            volume.attachable = await volume.stage.is_attachable(needed)
            if not volume.attachable:
                self._names.forget(volume.stage)
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
                threads = self.unstaging.share(volume.namespace, volume.stage.unique_name)
                with self.operations.measured(*volume.stage.unstaging_name):
                    work = await volume.stage.begin_unstaging(threads)
                    await self._do(volume, step, work, threads)
                volume.has_record = False
            elif need is not None:
                threads = self.staging.share_of(need.pod.metadata)
                volume.has_record = True
                work = await volume.stage.begin_staging(need.pod, need.volume, threads)
                await self._do(volume, step, work, threads)
                volume.is_outdated = False
                for uid in volume.users:
                    self.on_ready.call(uid)

    async def _discard(self, volume: _Volume) -> None:
        """Remove what is left of a staging that failed before anybody was asked. Raises OSError."""
        threads = self.unstaging.share(volume.namespace, volume.stage.unique_name)
        async with volume.calls:
            await volume.stage.discard(threads)
            await threads.run_sync(partial(self._marks.remove, *volume.stage.mark))
        volume.has_record = False

    async def _do(self, volume: _Volume, begins: StageEvent, work: Work, threads: Share) -> None:
        """Do what changes the volume, and walk its states. Raises VolumeError, OSError."""
        mark = volume.stage.mark
        undoes = begins is StageEvent.UNSTAGE
        make = self._marks.make_if_room if undoes else self._marks.make
        await threads.run_sync(partial(make, *mark))
        volume.walk.step(begins)
        try:
            await work()
        except BaseException:
            volume.walk.step(StageEvent.FAILED)
            raise
        volume.walk.step(StageEvent.SUCCEEDED)
        await threads.run_sync(partial(self._marks.remove, *mark))
