"""The CPUs and the memory that pods have for themselves, as the sync loop has them given.

A pod that leaves has its part until nothing of it runs, although the amounts that it asked for
count no longer once its source has let it go. A pod that its part is missing for waits for that.
"""

from collections.abc import Callable

import trio
from attrs import define, frozen

from trio_kubelet.k8s import TERMINAL_PHASES, Pod
from trio_kubelet.resource_managers import Refusal, ResourceManagers
from trio_kubelet.sync.pod_tasks import PodTasks
from trio_kubelet.sync.preemptions import in_words
from trio_kubelet.sync.store import PodStore
from trio_kubelet.tasks.callbacks import Callbacks


@frozen
class PartAwaited:
    """A pod cannot have its part before pods that leave have stopped: `holders`, in words."""

    holders: str


@define(kw_only=True)
class MachineParts:
    """Asks the resource managers for a pod, by what is known of the others. Plain methods.

    `runs` says whether something of a pod runs, by its UID.
    """

    _managers: ResourceManagers
    _store: PodStore
    _tasks: PodTasks
    _runs: Callable[[str], bool]
    _sources_known: trio.Event

    @property
    def on_released(self) -> Callbacks[[str]]:
        """Called with the UID of a pod whose part is free."""
        return self._managers.on_released

    def reserve(self, pod: Pod) -> Refusal | PartAwaited | None:
        """Reserve what a new pod needs; return why it cannot have it, or not yet, or None."""
        refusal = self._managers.reserve(pod, self._is_gone)
        holders = tuple(filter(self.is_leaving, sorted(self._managers.uids())))
        if refusal is None or not holders:
            return refusal
        return PartAwaited(in_words([self._name(uid) for uid in holders]))

    def recall(self, pod: Pod) -> None:
        """Take up a pod that was admitted before, which keeps what it has until it is over."""
        if pod.status.phase not in TERMINAL_PHASES:
            self._managers.recall(pod, self._is_gone)
        elif not self._runs(pod.metadata.uid):
            self._managers.release(pod.metadata.uid)  # The last agent was killed before.

    def is_leaving(self, uid: str) -> bool:
        """True if a pod ends, or no source has it any more."""
        task = self._tasks.get(uid)
        return uid not in self._store or (task is not None and task.known_ending is not None)

    def _is_gone(self, uid: str) -> bool:
        """True if nothing is left here of a pod, as far as all sources and the runtime tell."""
        known = uid in self._store or uid in self._tasks or self._runs(uid)
        return self._sources_known.is_set() and not known

    def _name(self, uid: str) -> str:
        task = self._tasks.get(uid)
        return task.pod.metadata.key if task is not None else f"pod with UID {uid}"
