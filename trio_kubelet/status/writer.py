"""Sends the statuses of pods to the API server, and deletes the objects of pods that have ended.

One owner, one piece of work for each pod: look at the newest status and at the pod as the API
has it, send what differs, and delete the object of a pod that is to go and of which nothing is
left. Nothing is queued but the pod's name in the queue: a status that is overtaken is never sent,
and after an outage the newest goes first. Who has no object in the API has nothing to send to.

The pod as the API has it comes from the watch and from the answers to our own requests, whichever
is newer; what the server does not take as it was sent is not sent again until either side changes.
One that it refuses has a back-off of its own, which no change cuts short but the end of its pod.
"""

from collections.abc import Callable

import structlog
import trio
from attrs import define, evolve, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import Pod, PodStatus
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.kinds import PODS
from trio_kubelet.k8s.versions import is_newer
from trio_kubelet.status.merge import merged_status, with_final_ends
from trio_kubelet.status.patch import Json, status_patch
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.work_queue import Retry, WorkQueue

log = structlog.get_logger("status")

PODS_IN_FLIGHT = 8
SENT_AT_MOST = 3
"""The times that a status is sent in a row to a server that answers with something else."""
RESYNC_SECONDS = 60.0
RETRY = BackoffPolicy(initial_seconds=0.1, cap_seconds=5.0, jitter=0.2)
RETRY_REFUSED = BackoffPolicy(initial_seconds=0.1, cap_seconds=30.0, jitter=0.2)
RETRY_INVALID = BackoffPolicy(initial_seconds=5.0, cap_seconds=600.0, jitter=0.2)
AT_ONCE = BackoffPolicy(initial_seconds=0.0, cap_seconds=0.0)
INVALID = 422
REFUSED = frozenset({401, 403})
"""The codes of an API server that somebody has to tell what this node may do."""
QUIET_SECONDS = 5.0
"""The time in which a 403 is no news: the authorizer may learn later of a pod than its node."""


@define
class _StatusRecord:
    """The writer's record of one pod. Times are trio's clock."""

    object: Pod
    """The newest version that the API has shown."""
    is_mirror: bool = False
    settled: tuple[PodStatus, PodStatus] | None = None
    """Its status and the node's when there was nothing more to send, or it was refused."""
    refusals: Retries = field(factory=lambda: Retries(RETRY_INVALID))
    """Refusals in a row."""
    refused_until: float | None = None
    """No status is sent before."""
    keeps_ends: bool = False
    """The API has refused a status as invalid, and got what it can take of those that followed."""
    deleted: bool = False
    failing_since: float | None = None
    changed_at: float | None = None
    """When the first change was told that the API does not show yet."""


@define
class StatusWriter:
    """Plain methods tell it what happened; `run` sends.

    `newest` is the node's status of a pod; `finished` says whether its task is over: containers
    stopped, volumes and cgroups given back. Pods are called by the UID that they have on the
    node: a static pod by its own, not its mirror's. `on_synced` is called when the API has come to
    show the newest status of a pod, with the seconds since it began to differ; `on_refused` when
    the API has refused one, with the pod as the API has it, what it says, and the seconds until
    the next is sent.
    """

    _api: Api
    _newest: Callable[[str], PodStatus | None]
    _finished: Callable[[str], bool]
    on_synced: Callbacks[[float]] = field(factory=Callbacks)
    on_refused: Callbacks[[str, Pod, str, float]] = field(factory=Callbacks)
    _pods: dict[str, _StatusRecord] = field(factory=dict, init=False)
    _queue: WorkQueue = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(
            self._bring, workers=PODS_IN_FLIGHT, name="status of", owner_of=self._namespace
        )

    def status_changed(self, pod: Pod, _status: PodStatus) -> None:
        """There is a new status (called by `Statuses.on_change`)."""
        reported = self._pods.get(pod.metadata.uid)
        if reported is not None:
            if reported.changed_at is None:
                reported.changed_at = trio.current_time()
            self.look_at(pod.metadata.uid)

    def look_at(self, uid: str) -> None:
        """Something has changed for the pod: its status, or its task has ended."""
        if uid in self._pods:
            self._queue.add(uid)

    def is_told(self, uid: str) -> bool:
        """True if the API shows the newest status of a pod, or refuses it, or has no pod."""
        reported = self._pods.get(uid)
        return reported is None or self._shows_newest(uid, reported)

    def changed(self, pod: Pod) -> None:
        """The API shows a pod, or a newer version of it."""
        self._see(pod.metadata.uid, pod, is_mirror=False)

    def removed(self, pod: Pod) -> None:
        """The API has the pod no longer."""
        self._pods.pop(pod.metadata.uid, None)

    def mirror_changed(self, uid: str, mirror: Pod | None) -> None:
        """The static pod of that UID has this mirror now; None: it has none."""
        if mirror is None:
            self._pods.pop(uid, None)
        else:
            self._see(uid, mirror, is_mirror=True)

    def synced(self) -> None:
        """The API has told of all pods: it answers (again)."""
        self._queue.answered()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send for ever. When cancelled, a request in flight may have been done or not."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._queue.run)
            task_status.started()
            while True:
                await trio.sleep(RESYNC_SECONDS)
                self._look_at_all()

    def _look_at_all(self) -> None:
        """Put in line the pods that differ unnoticed."""
        for uid in self._pods:
            self._queue.add(uid)

    def _see(self, uid: str, pod: Pod, *, is_mirror: bool) -> None:
        known = self._pods.get(uid)
        if known is None or known.object.metadata.uid != pod.metadata.uid:
            # A static pod may have had its status before its mirror.
            changed_at = None if self._newest(uid) is None else trio.current_time()
            self._pods[uid] = _StatusRecord(pod, is_mirror=is_mirror, changed_at=changed_at)
        elif is_newer(pod.metadata, known.object.metadata):
            known.object = pod
        else:
            return
        self._queue.add(uid)

    def _namespace(self, uid: str) -> str:
        reported = self._pods.get(uid)
        return reported.object.metadata.namespace if reported is not None else ""

    async def _bring(self, uid: str) -> Retry | None:
        """Bring the API into line for one pod."""
        reported = self._pods.get(uid)
        if reported is None:
            return None
        try:
            await self._send_status(uid, reported)
            if self._may_go(uid, reported):
                await self._delete(reported)
        except ApiError as error:
            return await self._after(error, uid, reported)
        reported.failing_since = None
        return _retry_of_refused(reported)

    async def _send_status(self, uid: str, reported: _StatusRecord) -> None:
        """Send what differs, until the answer shows what was wanted, or that it is not taken."""
        sent: Json = {}
        for _ in range(SENT_AT_MOST):
            own, known = self._newest(uid), reported.object.status
            if own is None or reported.deleted:
                return
            if self._is_held_back(uid, reported, (known, own)):
                return
            if reported.settled == (known, own) and not sent and reported.refused_until is None:
                reported.changed_at = None
                return
            shown = with_final_ends(reported.object, own)
            wanted = merged_status(known, shown)
            if reported.keeps_ends:
                kept = merged_status(known, shown, keeps_ends=True)
                wanted, reported.keeps_ends = kept, kept != wanted
            body = status_patch(reported.object.metadata.uid, known, wanted)
            if body is None or body["status"].items() <= sent.items():
                reported.settled, reported.refused_until = (known, own), None
                self._synced(reported, was_sent=bool(sent))
                return
            try:
                await self._patch(reported, body)
            except ApiError as error:
                if error.is_not_found or _may_help_to_repeat(error):
                    raise
                kept = merged_status(known, shown, keeps_ends=True)
                ends_help = error.code == INVALID and not reported.keeps_ends and kept != wanted
                reported.keeps_ends |= ends_help
                self._refused(uid, reported, error, sent_again=ends_help)
                if ends_help:
                    continue
                reported.settled = (known, own)
                return
            reported.refusals.reset()
            reported.refused_until = None
            sent = body["status"]
            reported.settled = (reported.object.status, own)

    def _is_held_back(
        self, uid: str, reported: _StatusRecord, statuses: tuple[PodStatus, PodStatus]
    ) -> bool:
        """True if a status was refused not long ago; the last one of a pod is tried once more."""
        until = reported.refused_until
        if until is None or trio.current_time() >= until:
            return False
        return reported.settled == statuses or not self._is_to_go(uid, reported)

    def _refused(
        self, uid: str, reported: _StatusRecord, error: ApiError, *, sent_again: bool
    ) -> None:
        """Tell that a status was refused, and let the next one wait, unless it is sent at once."""
        seconds = 0.0
        if not sent_again:
            seconds = reported.refusals.next_seconds()
            reported.refused_until = trio.current_time() + seconds
        self._queue.answered()
        log.warning(
            "pod status refused",
            pod=reported.object.metadata.key,
            uid=uid,
            error=str(error),
            next_try_seconds=round(seconds),
        )
        self.on_refused.call(uid, reported.object, str(error), seconds)

    def _synced(self, reported: _StatusRecord, *, was_sent: bool) -> None:
        changed_at, reported.changed_at = reported.changed_at, None
        if was_sent and changed_at is not None:
            self.on_synced.call(trio.current_time() - changed_at)

    async def _patch(self, reported: _StatusRecord, body: Json) -> None:
        meta = reported.object.metadata
        try:
            answer = await self._api.patch(
                PODS, meta.name, meta.namespace, body=body, subresource="status"
            )
        except ApiError as error:
            # Where another pod has the name by now, the status of this one is invalid, too.
            if error.code == INVALID and (unknown := await self._refresh(reported)) is not None:
                raise unknown from error
            raise
        self._queue.answered()
        if is_newer(answer.metadata, reported.object.metadata):
            # The spec is held once: that of the answer is another copy of it.
            reported.object = evolve(answer, spec=reported.object.spec)

    def _may_go(self, uid: str, reported: _StatusRecord) -> bool:
        """True if the object is all that is left of a deleted pod, and shows how it ended.

        An object that somebody's finalizer holds has been deleted already. What is a mirror only
        shows another pod; whoever makes mirrors takes them away.
        """
        is_told = self._shows_newest(uid, reported)
        is_here = not (reported.is_mirror or reported.deleted)
        return is_told and is_here and self._is_to_go(uid, reported)

    def _shows_newest(self, uid: str, reported: _StatusRecord) -> bool:
        own, settled = self._newest(uid), reported.settled
        return own is None or (settled is not None and settled[1] == own)

    def _is_to_go(self, uid: str, reported: _StatusRecord) -> bool:
        return reported.object.metadata.deletion_timestamp is not None and self._finished(uid)

    async def _delete(self, reported: _StatusRecord) -> None:
        meta = reported.object.metadata
        await self._api.delete(PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)
        self._queue.answered()
        reported.deleted = True
        log.info("pod deleted", pod=meta.key, uid=meta.uid)

    async def _after(self, error: ApiError, uid: str, reported: _StatusRecord) -> Retry | None:
        """Note that the pod is gone, or say when to try again."""
        if error.is_conflict:
            error = await self._refresh(reported) or error
        if not error.is_away:
            self._queue.answered()
        if error.is_not_found:
            self._forget(uid, reported)
            return None
        now = trio.current_time()
        if reported.failing_since is None:
            reported.failing_since = now
        is_news = now - reported.failing_since >= QUIET_SECONDS or not error.is_forbidden
        if is_news and not error.is_away:
            meta = reported.object.metadata
            pod = meta.key
            log.warning("pod status update failed", pod=pod, uid=uid, error=str(error))
        return _retry(error) if _may_help_to_repeat(error) else None

    async def _refresh(self, reported: _StatusRecord) -> ApiError | None:
        """Ask what the API has under the pod's name now; an error if that cannot be told."""
        meta = reported.object.metadata
        try:
            pod = await self._api.get(PODS, meta.name, meta.namespace)
        except ApiError as error:
            return error
        if pod.metadata.uid != meta.uid:
            return ApiError(404, "NotFound", "another pod has taken over the name")
        if is_newer(pod.metadata, reported.object.metadata):
            reported.object = pod
        return None

    def _forget(self, uid: str, reported: _StatusRecord) -> None:
        if self._pods.get(uid) is reported:
            del self._pods[uid]


def _may_help_to_repeat(error: ApiError) -> bool:
    """True if the server may take the same later; what is invalid waits for a change."""
    return error.is_retriable or error.is_conflict or error.code in REFUSED


def _retry_of_refused(reported: _StatusRecord) -> Retry | None:
    """When the status of a pod is to be looked at that was refused; None for others."""
    seconds = (reported.refused_until or 0.0) - trio.current_time()
    if seconds <= 0.0 or reported.deleted:
        return None
    return Retry(policy=AT_ONCE, at_least_seconds=seconds, until_added=True)


def _retry(error: ApiError) -> Retry:
    return Retry(
        policy=RETRY_REFUSED if error.code in REFUSED else RETRY,
        at_least_seconds=error.retry_after_seconds,
        until_reachable=error.is_away,
    )
