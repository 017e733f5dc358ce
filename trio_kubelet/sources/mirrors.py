"""Mirror pods: what the API shows of the static pods of this node.

For each static pod there is one object in the API, with the hash of its manifest in an
annotation and the Node as its owner. One that is missing is made; one that was deleted, or shows
another manifest, is taken away and made again. The mirror of a static pod that was removed is
deleted once its containers have ended, so that people can see it end. Nothing that happens to a
mirror touches its pod.

One piece of work for each full name: look at what should be and what there is, and do one step.
"""

from collections.abc import Callable

import structlog
import trio
from attrs import define, evolve, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import TERMINAL_PHASES, OwnerReference, Pod, PodStatus
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.kinds import PODS
from trio_kubelet.k8s.versions import is_newer
from trio_kubelet.pod_source import CONFIG_HASH, CONFIG_MIRROR, Source
from trio_kubelet.sources.merge import PodOperation, PodUpdate
from trio_kubelet.tasks.work_queue import Retry, WorkQueue

log = structlog.get_logger("mirrors")

MIRRORS_IN_FLIGHT = 4
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=60.0, jitter=0.2)
RETRY_UNANSWERED = BackoffPolicy(initial_seconds=0.5, cap_seconds=5.0, jitter=0.2)
"""While nobody answers, only one mirror is tried."""


Attach = Callable[[str, Pod | None], None]
"""Is told which mirror shows the static pod of a UID, so that its status goes there; None: none."""


def mirror_of(pod: Pod, node_name: str, node_uid: str) -> Pod:
    """The object to create for a static pod. NodeRestriction wants the Node as its only owner."""
    meta = pod.metadata
    owner = OwnerReference(
        api_version="v1", kind="Node", name=node_name, uid=node_uid, controller=True
    )
    annotations = {**meta.annotations, CONFIG_MIRROR: meta.annotations[CONFIG_HASH]}
    return evolve(
        pod,
        metadata=evolve(
            meta, uid="", resource_version="", annotations=annotations, owner_references=(owner,)
        ),
        status=PodStatus(),
    )


def shown_uid(mirror: Pod) -> str:
    """The UID of the static pod that a mirror shows: the hash of a static pod is its UID."""
    return mirror.metadata.annotations.get(CONFIG_MIRROR, "")


@define
class MirrorPods:
    """Plain methods tell it what happened; `run` acts.

    `sources` are those of static pods; until each has spoken, no mirror is taken for an orphan.
    `is_released(uid)`: nothing of a static pod runs here any more, or holds what others want.
    `newest` is the node's status of a pod; `attach` is told where statuses go.
    """

    _api: Api
    _node_name: str
    _sources: frozenset[Source]
    _is_released: Callable[[str], bool]
    _newest: Callable[[str], PodStatus | None]
    _attach: Attach
    _node_uid: str = field(default="", init=False)
    _synced: bool = field(default=False, init=False)
    _spoken: set[Source] = field(factory=set, init=False)
    _static: dict[str, Pod] = field(factory=dict, init=False)
    _mirrors: dict[str, Pod] = field(factory=dict, init=False)
    _attached: dict[str, str] = field(factory=dict, init=False)
    _queue: WorkQueue = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queue = WorkQueue(self._bring, workers=MIRRORS_IN_FLIGHT, name="mirror of")

    def node_changed(self, uid: str) -> None:
        """The Node object has this UID: it owns the mirrors. Empty: there is none.

        Without it none is made: it would have no owner, and somebody would collect it at once.
        """
        if uid != self._node_uid:
            self._node_uid = uid
            self._look_at_all()

    def static_changed(self, update: PodUpdate) -> None:
        """A source of static pods has said something; others' updates are ignored.

        It may be one that was named while the agent ran, and is not waited for.
        """
        if update.source is Source.API:
            return
        for pod in update.pods:
            name = pod.metadata.key
            if update.op is not PodOperation.REMOVE:
                self._static[name] = pod
            elif name in self._static and self._static[name].metadata.uid == pod.metadata.uid:
                del self._static[name]
            self._tell(name)
            self._queue.add(name)
        if update.source not in self._spoken:
            self._spoken.add(update.source)
            self._look_at_all()

    def status_changed(self, pod: Pod, status: PodStatus) -> None:
        """There is a new status (called by `Statuses.on_change`)."""
        name = pod.metadata.key
        mirror = self._mirrors.get(name)
        if mirror is not None and _has_ended(mirror.status) and not _has_ended(status):
            self._queue.add(name)

    def released(self, uid: str) -> None:
        """A pod has been released: if it was a static one, its mirror may go now."""
        for name, mirror in self._mirrors.items():
            if shown_uid(mirror) == uid:
                self._queue.add(name)

    def changed(self, mirror: Pod) -> None:
        """The API has this mirror, or a newer version of it."""
        name = mirror.metadata.key
        known = self._mirrors.get(name)
        if known is not None and not is_newer(mirror.metadata, known.metadata):
            return  # The echo of what an answer has told already.
        self._mirrors[name] = mirror
        self._tell(name)
        self._queue.add(name)

    def removed(self, mirror: Pod) -> None:
        """The API has this mirror no longer."""
        name = mirror.metadata.key
        known = self._mirrors.get(name)
        if known is not None and known.metadata.uid == mirror.metadata.uid:
            self._drop(name)
            self._queue.add(name)

    def synced(self) -> None:
        """The API has told of all mirrors that there are."""
        self._synced = True
        self._queue.answered()
        self._look_at_all()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Act for ever. When cancelled, a request in flight may have been done or not."""
        await self._queue.run(task_status=task_status)

    def _look_at_all(self) -> None:
        for name in {**self._static, **self._mirrors}:
            self._queue.add(name)

    def _tell(self, name: str) -> None:
        """Say which mirror the status of a static pod goes to.

        Also while the pod ends and no source has it any more; but never because of a mark alone
        that anybody may have put on a pod.
        """
        mirror, pod = self._mirrors.get(name), self._static.get(name)
        if mirror is None:
            return
        uid = shown_uid(mirror)
        if (pod is not None and pod.metadata.uid == uid) or self._attached.get(name) == uid:
            self._attached[name] = uid
            self._attach(uid, mirror)

    def _drop(self, name: str) -> None:
        """Nothing shows the static pod any more."""
        del self._mirrors[name]
        uid = self._attached.pop(name, "")
        if uid:
            self._attach(uid, None)

    async def _bring(self, name: str) -> Retry | None:
        """Bring the mirror of one full name into line."""
        if not self._synced:
            return None
        try:
            await self._act(name)
        except ApiError as error:
            return self._after(error, name)
        return None

    async def _act(self, name: str) -> None:
        mirror = self._mirrors.get(name)
        if mirror is not None and self._may_go(self._static.get(name), mirror):
            await self._delete(name, mirror)
        pod = self._static.get(name)
        if pod is not None and self._node_uid and name not in self._mirrors:
            log.info("creating mirror pod", pod=name, uid=pod.metadata.uid)
            wanted = mirror_of(pod, self._node_name, self._node_uid)
            made = await self._api.create(PODS, wanted, pod.metadata.namespace)
            self._queue.answered()
            if name not in self._mirrors:
                self.changed(made)

    def _may_go(self, pod: Pod | None, mirror: Pod) -> bool:
        """True if the mirror shows nothing that is there, or somebody has deleted it."""
        uid = shown_uid(mirror)
        if pod is not None and pod.metadata.uid == uid:
            deleted = mirror.metadata.deletion_timestamp is not None
            return deleted or self._is_outdated(uid, mirror)
        return self._spoken >= self._sources and self._is_released(uid)

    def _is_outdated(self, uid: str, mirror: Pod) -> bool:
        """True if the mirror shows an end, and its pod runs again, after a reboot for instance.

        It cannot show that: the API takes no ended container for one that runs.
        """
        own = self._newest(uid)
        return _has_ended(mirror.status) and own is not None and not _has_ended(own)

    async def _delete(self, name: str, mirror: Pod) -> None:
        meta = mirror.metadata
        log.info("deleting mirror pod", pod=name, uid=meta.uid, shows=shown_uid(mirror))
        try:
            await self._api.delete(PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)
        except ApiError as error:
            # A conflict may pass. If another object has the name, the watch tells.
            if not error.is_not_found:
                raise
        self._queue.answered()
        known = self._mirrors.get(name)
        if known is not None and known.metadata.uid == meta.uid:
            self._drop(name)

    def _after(self, error: ApiError, name: str) -> Retry:
        if not error.is_away:
            self._queue.answered()
            log.warning("mirror pod update failed", pod=name, error=str(error))
        return Retry(
            policy=RETRY_UNANSWERED if error.is_away else RETRY,
            at_least_seconds=error.retry_after_seconds,
            until_reachable=error.is_away,
        )


def _has_ended(status: PodStatus) -> bool:
    return status.phase in TERMINAL_PHASES
