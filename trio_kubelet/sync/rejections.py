"""The ends of pods that were rejected: a few at a time, and those of a kind one after another.

A pod that is rejected ends as any other does, in a task of its own, and thousands may come at once.
So all but a few wait for that without a task, and their namespaces take turns. Where the next pod
of the same kind would be rejected as well, there is a pace (`rejection_pace.py`).
"""

from collections.abc import Callable
from functools import partial

import structlog
import trio
from attrs import define, field

from state_machines.pod import PodEvent
from state_machines.pod_ending import Ending
from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers import Refusal
from trio_kubelet.status.context import POD_REJECTED
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.sync.pod_task import PodRequest
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.rejection_pace import RejectionPace
from trio_kubelet.sync.store import PodStore, StoredPod
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.turns import TurnQueue
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("sync")

ENDS_AT_ONCE = 16
"""Rejected pods that have a task, and hold something still."""


def rejection_of(refusal: Refusal) -> Rejection:
    """The rejection of a pod that resource managers refuse; its like will be refused as well."""
    return Rejection(reason=refusal.reason, message=refusal.message, is_paced=True)


@define(kw_only=True)
class Rejections:
    """Ends the pods that were rejected. Plain methods, which the sync loop calls.

    `waits` runs what waits, `delete` deals with a pod that was deleted before its end began.
    """

    _store: PodStore
    _tasks: PodTasks
    _recorder: EventRecorder
    _waits: BackgroundTasks
    _delete: Callable[[Pod], None]
    _pace: RejectionPace = field(init=False, factory=RejectionPace)
    _ending: set[str] = field(init=False, factory=set)
    _waiting: dict[str, tuple[StoredPod, Rejection]] = field(init=False, factory=dict)
    _turns: TurnQueue[str] = field(init=False, factory=TurnQueue[str])

    def __attrs_post_init__(self) -> None:
        self._tasks.on_released.add(self._released)

    def reject(self, stored: StoredPod, rejection: Rejection) -> None:
        """Let a pod fail, now or later. It holds nothing from now on, however late it ends."""
        pod, seconds = stored.pod, self._count(stored.pod, rejection)
        if seconds:
            self._tasks.start(pod, stored.incarnation, after=trio.Event())
            self._waits.start(partial(self._reject_later, stored, rejection, seconds))
            return
        self._waiting[pod.metadata.uid] = (stored, rejection)
        self._turns.put(pod.metadata.namespace, pod.metadata.uid)
        self._end_next()

    def reject_waiting(self, uid: str, rejection: Rejection) -> None:
        """Let a pod fail that was admitted and whose task waits to start, if it is still there."""
        stored = self._store.get(uid)
        if stored is None:
            return
        seconds = self._count(stored.pod, rejection)
        if seconds:
            self._waits.start(partial(self._reject_later, stored, rejection, seconds))
        else:
            self._tell(stored.pod, rejection)

    def drop(self, uid: str) -> bool:
        """Forget a pod whose end has not begun; False if it has, or was not rejected."""
        waiting = self._waiting.pop(uid, None)
        if waiting is None:
            return False
        self._turns.remove(waiting[0].pod.metadata.namespace, uid)
        return True

    def _count(self, pod: Pod, rejection: Rejection) -> float:
        """Note that a pod holds nothing; return after how many seconds it may end."""
        self._store.reject(pod.metadata.uid)
        return self._pace.seconds(pod, trio.current_time()) if rejection.is_paced else 0.0

    def _end_next(self) -> None:
        while self._turns and len(self._ending) < ENDS_AT_ONCE:
            rejected, rejection = self._waiting.pop(self._turns.take())
            try:
                self._end(rejected.pod.metadata.uid, rejection)
            except Exception:
                log.exception(
                    "sync loop handler failed", pod=rejected.pod.metadata.key, op="reject"
                )

    def _end(self, uid: str, rejection: Rejection) -> None:
        stored = self._store.get(uid)
        assert stored is not None, f"rejected pod {uid} went without being dropped"
        self._tasks.start(stored.pod, stored.incarnation)
        self._ending.add(uid)
        if stored.pod.metadata.deletion_timestamp is None:
            self._tell(stored.pod, rejection)
        else:
            self._delete(stored.pod)

    def _released(self, uid: str) -> None:
        """A pod holds nothing any more, be it a rejected one or not; its own task says so."""
        self._ending.discard(uid)
        if self._turns:
            self._waits.start(self._end_others)

    async def _end_others(self) -> None:
        """In a task of the sync loop's: what it logs is not of the pod that was released."""
        self._end_next()

    async def _reject_later(self, stored: StoredPod, rejection: Rejection, seconds: float) -> None:
        """Tell of a rejection after a while, if the pod is still there and was not ended."""
        await trio.sleep(seconds)
        task = self._tasks.get(stored.pod.metadata.uid)
        if task is None or task.incarnation != stored.incarnation or task.known_ending is not None:
            return
        self._tell(stored.pod, rejection)

    def _tell(self, pod: Pod, rejection: Rejection) -> None:
        self._recorder.pod(pod, EventType.WARNING, rejection.reason, rejection.message)
        ending = Ending(
            causes=(PodEvent.REJECTED,),
            reason=rejection.reason,
            message=f"{POD_REJECTED}{rejection.message}",
        )
        self._tasks.put(pod.metadata.uid, PodRequest(ending=ending))
