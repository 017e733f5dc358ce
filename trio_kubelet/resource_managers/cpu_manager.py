"""The CPU manager: the owner of what was assigned to whom, and of its record.

A pod is given CPUs at its admission (`cpu_draft.py`) and gives them back when nothing of it runs
any more. The policy `none` assigns nothing; it leaves a state file behind that says so.
"""

from pathlib import Path

import structlog
import trio

from trio_kubelet.config.cpu_policy import NONE, STATIC
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.state_file import StateFile
from trio_kubelet.resource_managers.cpu_assignment import NOTHING
from trio_kubelet.resource_managers.cpu_draft import (
    ContainerCpus,
    CpuDraft,
    StaticCpuPolicy,
    exclusive_cpu_counts,
)
from trio_kubelet.resource_managers.cpu_sets import CpuSet, cpu_list, parsed_cpus
from trio_kubelet.resource_managers.cpu_state import FILE, CpuState, parsed, printed, repaired
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("resources")


class CpuManager:
    """Owns what is assigned to whom. Plain methods but for those that touch the disk.

    Without a policy nothing is assigned. The file is in `root`, for threads of `limiter`.
    `on_change` is called when the CPUs of containers have changed, `on_pinned` for each container
    that was to have CPUs of its own, with True if it got them.
    """

    def __init__(
        self, policy: StaticCpuPolicy | None, root: Path, limiter: trio.CapacityLimiter
    ) -> None:
        self.policy = policy
        self._file = StateFile(root / FILE, limiter, self._state, printed)
        self._assignments: dict[str, ContainerCpus] = {}
        self.on_change: Callbacks[[]] = Callbacks()
        self.on_pinned: Callbacks[[bool]] = Callbacks()
        self._share_rest()

    @property
    def assigned(self) -> CpuSet:
        """All CPUs that containers have for themselves."""
        assigned = (cpus for each in self._assignments.values() for cpus in each.values())
        return NOTHING.union(*assigned)

    def assigned_to(self, uid: str) -> CpuSet:
        """The CPUs that containers of a pod have for themselves."""
        return NOTHING.union(*self._assignments.get(uid, {}).values())

    @property
    def free_count(self) -> int:
        """The number of CPUs that are shared and not reserved."""
        if self.policy is None:
            return 0
        return len(self.policy.topology.all - self.policy.reserved - self.assigned)

    async def load(self) -> None:
        """Read what an earlier agent kept, this one or the Go kubelet. Before the first pod."""
        found = await self._file.read(parsed)
        if self.policy is not None and found is not None:
            kept, lines = repaired(found, STATIC, self.policy.topology.all, self.policy.reserved)
            self._assignments = dict(kept)
            for line in lines:
                self._file.repaired(line)
            self._share_rest()
        if (found is not None or self.policy is not None) and found != self._state():
            self._file.changed()
        await self._file.keep()

    def draft(self, pod: Pod, *, anew: bool = False) -> CpuDraft | None:
        """Begin to choose CPUs for a pod's containers; None if it is to have none for itself.

        `anew`: what it has already does not count.
        """
        if self.policy is None:
            return None
        counts, known = exclusive_cpu_counts(pod), self._assignments.get(pod.metadata.uid, {})
        if not (counts or known):
            return None
        assigned = self.assigned
        if anew:
            known, assigned = {}, assigned - self.assigned_to(pod.metadata.uid)
        return CpuDraft(pod, self.policy, self.policy.free(assigned), known, counts)

    def commit(self, draft: CpuDraft) -> None:
        """Assign what was chosen."""
        if new := [draft.chosen[name] for name in draft.chosen.keys() - draft.known.keys()]:
            cpus = cpu_list(NOTHING.union(*new))
            log.info("exclusive CPUs assigned", pod=draft.pod.metadata.key, cpus=cpus)
        for _ in new:
            self.on_pinned.call(True)
        self._put(draft.pod.metadata.uid, draft.chosen)

    def release(self, uid: str) -> None:
        """Take back what a pod has: nothing of it runs any more."""
        self._put(uid, {})

    def cpus_of_pod(self, uid: str) -> ContainerCpus:
        """Return the CPUs that containers of a pod have for themselves, by container."""
        return self._assignments.get(uid, {})

    def cpus_of(self, uid: str, container_name: str) -> CpuSet | None:
        """Return the CPUs that a container has for itself; None if it shares them."""
        return self._assignments.get(uid, {}).get(container_name)

    @property
    def shared(self) -> str:
        """The list of the CPUs of all others; empty where nothing is assigned to anybody."""
        return self._shared

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that have CPUs."""
        return frozenset(self._assignments)

    async def keep(self) -> bool:
        """Return when all that was assigned is on the disk, or could not be; True if it is."""
        return await self._file.keep()

    def _put(self, uid: str, cpus: ContainerCpus) -> None:
        if self._assignments.get(uid, {}) == cpus:
            return
        self._assignments.pop(uid, None)
        if cpus:
            self._assignments[uid] = cpus
        self._file.changed()
        self._share_rest()
        self.on_change.call()

    def _share_rest(self) -> None:
        shared = self.policy.shared(self.assigned) if self.policy is not None else NOTHING
        self._shared = cpu_list(shared)

    def _state(self) -> CpuState:
        if self.policy is None:
            return CpuState(policy=NONE)
        return CpuState(
            policy=STATIC,
            shared=parsed_cpus(self._shared),
            assignments=dict(self._assignments),
        )
