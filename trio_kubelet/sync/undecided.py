"""New pods that the node does not suit as it is known: decided on once it was asked for anew.

Labels of the node and its pods come by different ways: a pod that was bound for a label may be here
before it. The sync loop goes on meanwhile, and all pods that wait share a question: who binds a
thousand pods that ask for another node holds up nobody else's.
"""

from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import define, field

from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import source_of
from trio_kubelet.sources import PodOperation

log = structlog.get_logger("sync")

PAUSE_SECONDS = 0.2
"""Between two questions: they count for kubeAPIQPS, as the statuses of all pods do."""


@define(eq=False)
class UndecidedPods:
    """The pods that wait, by UID, each in its newest version.

    `wants_newer_node` says whether a pod waits, `refresh_node` has the Node object fetched anew.
    """

    _wants_newer_node: Callable[[Pod], bool]
    _refresh_node: Callable[[], Awaitable[None]]
    _pods: dict[str, Pod] = field(init=False, factory=dict)
    _came: trio.Event = field(init=False, factory=trio.Event)

    def take(self, op: PodOperation, pod: Pod) -> bool:
        """Take what a source says of a pod, if the pod waits here, or is to; else False.

        A pod that is to go again is not waited for.
        """
        uid = pod.metadata.uid
        waiting = self._pods.get(uid)
        if waiting is None:
            if op is not PodOperation.ADD or not self._is_to_wait(pod):
                return False
        elif source_of(waiting) != source_of(pod):
            return False
        elif op is PodOperation.REMOVE:
            del self._pods[uid]
            return True
        self._pods[uid] = pod
        self._came.set()
        return True

    def _is_to_wait(self, pod: Pod) -> bool:
        if pod.metadata.deletion_timestamp is not None:
            return False
        try:
            return self._wants_newer_node(pod)
        except Exception:  # the pod is decided on all the same
            log.exception("node comparison failed", pod=pod.metadata.key)
            return False

    async def run(self, decide: Callable[[Pod], Awaitable[None]]) -> None:
        """Ask, then have those decided on that waited before the question; until cancelled."""
        while True:
            await self._came.wait()
            self._came = trio.Event()
            asked_for = tuple(self._pods)
            try:
                await self._refresh_node()
            except Exception:  # the pods are decided on all the same, one by one
                log.exception("node refresh for admission failed")
            for uid in asked_for:
                if (pod := self._pods.pop(uid, None)) is not None:
                    await decide(pod)
            await trio.sleep(PAUSE_SECONDS)
