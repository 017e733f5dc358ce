"""The pods that this node should have: what the sources said last, by UID.

The sync loop's handlers are the only writers. Each pod that is added gets a new incarnation
number, so that a UID which is removed and comes back can be told from a late update.
"""

from collections.abc import Iterator

from attrs import evolve, frozen

from trio_kubelet.k8s import TERMINAL_PHASES, Pod
from trio_kubelet.pod_source import source_of
from trio_kubelet.tasks.callbacks import Callbacks


@frozen(kw_only=True)
class StoredPod:
    """A pod that a source has.

    `incarnation` counts upwards over all pods. `admitted` is False for a pod that was rejected.
    `added_at` is trio's clock. `over`: its task has finished, it is not to be started again.
    """

    pod: Pod
    incarnation: int
    added_at: float
    admitted: bool = True
    over: bool = False


class PodStore:
    """The desired pods. Plain methods, no waiting, one owner.

    `on_change` is called with the UID of a pod that is added, has a newer version, or is removed.
    """

    def __init__(self) -> None:
        self.on_change: Callbacks[[str]] = Callbacks()
        self._pods: dict[str, StoredPod] = {}
        self._incarnations = 0

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[StoredPod]:
        return iter(tuple(self._pods.values()))

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def get(self, uid: str) -> StoredPod | None:
        """The pod of that UID, if a source has it."""
        return self._pods.get(uid)

    def add(self, pod: Pod, now: float) -> StoredPod:
        """Store a new incarnation; one that had the same UID is replaced."""
        self._incarnations += 1
        stored = StoredPod(pod=pod, incarnation=self._incarnations, added_at=now)
        self._pods[pod.metadata.uid] = stored
        self.on_change.call(pod.metadata.uid)
        return stored

    def update(self, pod: Pod) -> StoredPod | None:
        """Store a newer version of a pod; None if its source has no such pod here."""
        if not self._has(pod):
            return None
        stored = self._change(pod.metadata.uid, pod=pod)
        self.on_change.call(pod.metadata.uid)
        return stored

    def reject(self, uid: str) -> None:
        """Remember that admission refused the pod."""
        self._change(uid, admitted=False)

    def close(self, uid: str, incarnation: int) -> None:
        """Remember that this incarnation's task has finished."""
        stored = self._pods.get(uid)
        if stored is not None and stored.incarnation == incarnation:
            self._change(uid, over=True)

    def remove(self, pod: Pod) -> StoredPod | None:
        """Forget a pod; its former entry, None if its source has no such pod here."""
        if not self._has(pod):
            return None
        removed = self._pods.pop(pod.metadata.uid)
        self.on_change.call(pod.metadata.uid)
        return removed

    def active(self) -> Iterator[StoredPod]:
        """The pods that hold resources: admitted, and not over by their task or their status.

        What an earlier agent brought to its end holds nothing, although its task has just begun.
        """
        return (
            stored
            for stored in self
            if stored.admitted
            and not stored.over
            and stored.pod.status.phase not in TERMINAL_PHASES
        )

    def ended(self) -> Iterator[Pod]:
        """The pods whose tasks have finished, and whose end their source knows."""
        return (each.pod for each in self if each.over and each.pod.status.phase in TERMINAL_PHASES)

    def _has(self, pod: Pod) -> bool:
        """True if the pod of this UID is this source's: another one's may have taken its place."""
        stored = self._pods.get(pod.metadata.uid)
        return stored is not None and source_of(stored.pod) == source_of(pod)

    def _change(self, uid: str, **changes: object) -> StoredPod | None:
        stored = self._pods.get(uid)
        if stored is None:
            return None
        self._pods[uid] = evolve(stored, **changes)  # type: ignore[arg-type]
        return self._pods[uid]
