"""Volumes of CSI drivers that grow: when a pod gets them, and while pods use them.

A claim asks for more space, a controller enlarges the volume, and the claim's status says then that
the node is next. The node has the driver do its part (NodeExpandVolume), and writes into the status
how that goes (KEP-1790). A pod that gets the volume waits for it. For those that run it is done
beside them: nobody tells a node that a claim has changed, because it may get claims and not watch
them, so each volume in use is looked after as often as the Go kubelet does, once in
`syncFrequency`.

A driver may be asked again for what it has done: the status says that it is done only afterwards,
so an agent that is killed in between leaves the rest to the next one.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

import structlog
import trio
from attrs import define, evolve, field, frozen

from trio_kubelet.csi import EXPANDS
from trio_kubelet.k8s import PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod, Time
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.rpc import Code, RpcError, rpc_words
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.telemetry import EventType
from trio_kubelet.volumes.back_offs import RETRY
from trio_kubelet.volumes.csi_records import StagePlace
from trio_kubelet.volumes.csi_requests import CSIParts, CSIRequests, NoDriverError
from trio_kubelet.volumes.operations import EXPAND
from trio_kubelet.volumes.plugin import VolumeError
from trio_kubelet.volumes.resolved import ResolvedVolume, claim_name

log = structlog.get_logger("volumes")

STORAGE = "storage"

PENDING, IN_PROGRESS, INFEASIBLE = (
    "NodeResizePending",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
)
"""The node's states among those of a claim's `allocatedResourceStatuses`."""

FILE_SYSTEM_PENDING, FAILED = "FileSystemResizePending", "NodeResizeError"
_CONDITIONS = frozenset({"Resizing", FILE_SYSTEM_PENDING, "ControllerResizeError", FAILED})
"""The conditions of a claim that a resize has, and no other."""

_REFUSALS = frozenset({Code.FAILED_PRECONDITION, Code.UNIMPLEMENTED})
"""Answers of a driver that does not expand the volume while it is in use, or never does."""
_INFEASIBLE_CODES = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND})
"""Answers after which the controller has to decide anew (KEP-1790)."""
_UNCERTAIN_CODES = frozenset(
    {
        Code.CANCELLED,
        Code.DEADLINE_EXCEEDED,
        Code.UNAVAILABLE,
        Code.RESOURCE_EXHAUSTED,
        Code.ABORTED,
    }
)
"""Answers that leave open what the driver has done or goes on doing: the status stays."""

Calls = Callable[[StagePlace], AbstractAsyncContextManager[None]]
"""Gives a volume to one caller at a time."""


class ExpansionRefusedError(Exception):
    """The driver does not expand a volume that is in use, or none at all; the text says which."""


@frozen(kw_only=True, eq=False)
class VolumeInUse:
    """A persistent volume as it is published for a pod, for the driver to find it.

    `path` is the target, `place` where it is staged.
    """

    pod: Pod
    volume: ResolvedVolume
    path: str
    place: StagePlace


@frozen(kw_only=True, eq=False)
class WantedExpansion:
    """A volume's size as it is to be, and the claim that asks for it.

    `is_told`: the claim's status has the size already, another node has expanded the volume.
    """

    claim: PersistentVolumeClaim
    size: Quantity
    is_told: bool


def awaits_node(claim: PersistentVolumeClaim) -> bool:
    """True if a claim's status says that the node's part of an expansion is to be done.

    Without a word of `allocatedResourceStatuses` the condition counts, which controllers before
    KEP-1790 set. The sizes alone do not: the controller writes that of the volume before it has
    decided whether the node has a part in it.
    """
    stage = claim.status.allocated_resource_statuses.get(STORAGE, "")
    conditions = claim.status.conditions
    is_pending = any(
        each.type == FILE_SYSTEM_PENDING and each.status == "True" for each in conditions
    )
    return stage in (PENDING, IN_PROGRESS) or (not stage and is_pending)


def began() -> Mapping[str, object]:
    """Return the change of a claim's status when the driver is asked."""
    return {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}}


def finished(claim: PersistentVolumeClaim, size: Quantity) -> Mapping[str, object]:
    """Return the change of a claim's status when its volume has the size."""
    return {
        "allocatedResourceStatuses": {STORAGE: None},
        "capacity": {STORAGE: str(size)},
        "conditions": _encoded(each for each in claim.status.conditions if not _is_of_resize(each)),
    }


def failed(
    claim: PersistentVolumeClaim, code: Code, words: str, now: Time
) -> Mapping[str, object] | None:
    """Return the change of a claim's status after an error; None if it says nothing for certain."""
    if code in _UNCERTAIN_CODES:
        return None
    condition = PersistentVolumeClaimCondition(
        type=FAILED,
        status="True",
        last_transition_time=now,
        message=f"failed to expand pvc with {words}",
    )
    others = [each for each in claim.status.conditions if each.type != FAILED]
    change: dict[str, object] = {"conditions": _encoded((*others, condition))}
    if code in _INFEASIBLE_CODES:
        change["allocatedResourceStatuses"] = {STORAGE: INFEASIBLE}
    return change


def _is_of_resize(condition: PersistentVolumeClaimCondition) -> bool:
    return condition.type in _CONDITIONS


def _encoded(conditions: Iterable[PersistentVolumeClaimCondition]) -> list[object]:
    return [encode(each) for each in conditions]


@define(eq=False)
class _Followed:
    """A volume in use: by which pods, and how large it is as far as this node knows.

    `size` is None until it is known, `refused` the size that the driver will not give it. `changed`
    is set when nobody uses it any more, or its driver may do now what it has refused.
    """

    users: dict[str, VolumeInUse] = field(factory=dict)
    size: Quantity | None = None
    refused: Quantity | None = None
    changed: trio.Event = field(factory=trio.Event)

    @property
    def writer(self) -> VolumeInUse | None:
        """The first pod that may write to the volume."""
        return next((each for each in self.users.values() if not each.volume.read_only), None)


@define(eq=False)
class VolumeExpansions:
    """The growth of the persistent volumes that drivers have published at this node.

    `calls` gives a volume to one caller at a time.
    """

    _parts: CSIParts
    _requests: CSIRequests
    _objects: References | NoReferences
    _calls: Calls
    _followed: dict[StagePlace, _Followed] = field(init=False, factory=dict)
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look after the volumes in use until cancelled."""
        self._parts.drivers.on_change.add(self._hurry)
        await self._tasks.run(task_status=task_status)

    def published(self, used: VolumeInUse) -> None:
        """Look after a volume from now on; one that is known already is fine."""
        followed = self._followed.get(used.place)
        if followed is None:
            followed = self._followed[used.place] = _Followed()
            self._tasks.start(partial(self._follow, used.place, followed))
        followed.users[used.pod.metadata.uid] = used

    def unpublished(self, pod_uid: str, path: str = "") -> None:
        """Forget a volume of a pod, or all; unknown ones are fine."""
        for place, followed in tuple(self._followed.items()):
            used = followed.users.get(pod_uid)
            if used is not None and path in ("", used.path):
                del followed.users[pod_uid]
                if not followed.users:
                    del self._followed[place]
                    followed.changed.set()

    async def wanted(self, used: VolumeInUse) -> WantedExpansion | None:
        """Return the expansion that a volume waits for; None if there is none.

        Raises ObjectError.
        """
        return await self._wanted_by(await self._claim(used), used, None)

    async def expand_new(self, used: VolumeInUse, wanted: WantedExpansion) -> None:
        """Expand a volume that was published for a pod just now. Raises VolumeError.

        One that the driver refuses to expand is used as it is.
        """
        pod, name = used.pod, used.volume.spec_name
        if used.volume.read_only:
            words = "MountVolume.NodeExpandVolume failed"
            message = f'{words} for volume "{name}" requested read-only file system'
            self._parts.recorder.pod(pod, EventType.WARNING, "FileSystemResizeFailed", message)
            return
        try:
            await self._expand(used, wanted)
        except ExpansionRefusedError as error:
            self._warn(used, str(error))
        except (RpcError, ObjectError, NoDriverError) as error:
            raise VolumeError(
                name, _words(error), "MountVolume.Setup", detail=" while expanding volume"
            ) from error
        else:
            self.published(used)
            self._followed[used.place].size = wanted.size

    def _hurry(self) -> None:
        """Drivers have come or gone: what one has refused, another may do."""
        for followed in self._followed.values():
            if followed.refused is not None:
                followed.refused = None
                followed.changed.set()

    async def _follow(self, place: StagePlace, followed: _Followed) -> None:
        """Look every so often whether a volume is to grow, until nobody uses it."""
        retries, wait_seconds = Retries(RETRY), self._parts.look_seconds
        while True:
            with trio.move_on_after(wait_seconds):
                await followed.changed.wait()
            if not followed.users:
                return
            followed.changed = trio.Event()
            wait_seconds = self._parts.look_seconds
            try:
                await self._look(place, followed)
            except (RpcError, ObjectError, NoDriverError) as error:
                words = "volume expansion failed, will retry"
                retries.warn(log, words, volume=place.key.unique_name, error=_words(error))
                wait_seconds = retries.next_seconds()
            except Exception:
                name = place.key.unique_name
                log.exception("volume expansion check failed", volume=name)
            else:
                retries.reset()

    async def _look(self, place: StagePlace, followed: _Followed) -> None:
        """Have a volume in use grow, if its claim says so. Raises what `_follow` retries."""
        used = followed.writer
        if used is None:
            return
        claim = await self._claim(used)
        followed.size = followed.size or claim.status.capacity.get(STORAGE)
        wanted = await self._wanted_by(claim, used, followed.size)
        if wanted is None or wanted.size == followed.refused:
            return
        async with self._calls(place):
            if used.pod.metadata.uid not in followed.users:
                return
            plugin = self._parts.shown_plugin(place.key.driver)
            try:
                with self._parts.operations.measured(plugin, EXPAND):
                    await self._expand(used, wanted)
            except ExpansionRefusedError as error:
                followed.refused = wanted.size
                self._warn(used, str(error))
            except RpcError as error:
                self._warn(used, _words(error))
                raise
            else:
                followed.size = wanted.size

    async def _claim(self, used: VolumeInUse) -> PersistentVolumeClaim:
        """Return the claim of a volume as it is now. Raises ObjectError."""
        name = claim_name(used.pod, used.volume.volume)
        return await self._objects.claim(used.pod.metadata.namespace, name)

    async def _wanted_by(
        self, claim: PersistentVolumeClaim, used: VolumeInUse, known: Quantity | None
    ) -> WantedExpansion | None:
        """Return the expansion that a claim asks for of a volume with a known size, if any.

        Raises ObjectError.
        """
        name, told, waits = (
            used.volume.spec_name,
            claim.status.capacity.get(STORAGE),
            awaits_node(claim),
        )
        is_behind = known is not None and told is not None and known < told
        if claim.spec.volume_name != name or not (waits or is_behind):
            return None
        persistent = await self._objects.persistent_volume(claim.metadata.namespace, name)
        size = persistent.spec.capacity.get(STORAGE)
        return None if size is None else WantedExpansion(claim=claim, size=size, is_told=not waits)

    async def _expand(self, used: VolumeInUse, wanted: WantedExpansion) -> None:
        """Have the driver expand a volume, and the claim say so.

        Raises RpcError, ExpansionRefusedError, ObjectError, NoDriverError.
        """
        driver = await self._parts.driver(used.place.key.driver)
        capabilities = await driver.capabilities()
        claim = wanted.claim
        if EXPANDS not in capabilities:
            words = f"NodeExpand is not supported by the CSI driver {driver.name}"
            await self._report_failure(wanted, Code.UNIMPLEMENTED, words)
            raise ExpansionRefusedError(words)
        expansion = await self._requests.expansion(
            used.pod,
            used.volume,
            capabilities,
            size_bytes=wanted.size.value,
            path=used.path,
            staging_path=str(used.place.path),
        )
        if not wanted.is_told:
            claim = await self._objects.report_claim(claim, began())
        try:
            await driver.expand(expansion)
        except RpcError as error:
            await self._report_failure(evolve(wanted, claim=claim), error.code, _words(error))
            if error.code in _REFUSALS:
                raise ExpansionRefusedError(_words(error)) from error
            raise
        if not wanted.is_told:
            claim = await self._objects.report_claim(claim, finished(claim, wanted.size))
        self._tell(used, claim)

    async def _report_failure(self, wanted: WantedExpansion, code: Code, words: str) -> None:
        """Have a claim say why its volume has not grown; one that cannot is logged."""
        claim, now = wanted.claim, Time.from_ns(self._parts.clock.now_ns())
        change = None if wanted.is_told else failed(claim, code, words, now)
        if change is None:
            return
        try:
            await self._objects.report_claim(claim, change)
        except ObjectError as error:
            log.warning("claim status update failed", claim=claim.metadata.key, error=str(error))

    def _tell(self, used: VolumeInUse, claim: PersistentVolumeClaim) -> None:
        """Record the events of a volume that has grown."""
        reason = "FileSystemResizeSuccessful"
        name, node = used.volume.spec_name, self._parts.node
        message = f'MountVolume.NodeExpandVolume succeeded for volume "{name}" {node}'
        self._parts.recorder.pod(used.pod, EventType.NORMAL, reason, message)
        self._parts.recorder.claim(claim, EventType.NORMAL, reason, message)

    def _warn(self, used: VolumeInUse, words: str) -> None:
        """Record the event of a volume that could not grow."""
        step = "NodeExpandVolume.NodeExpandVolume failed"
        message = f'{step} for volume "{used.volume.spec_name}" : {words}'
        self._parts.recorder.pod(used.pod, EventType.WARNING, "VolumeResizeFailed", message)


def _words(error: Exception) -> str:
    if isinstance(error, RpcError):
        words = rpc_words(error.code, error.message)
        return f"Expander.NodeExpand failed to expand the volume : {words}"
    return str(error)
