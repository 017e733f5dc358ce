"""The CPU manager: the owner of what was assigned to whom, and of its record.

A pod is given CPUs at its admission (`cpu_draft.py`) and gives them back when nothing of it runs
any more. The policy `none` assigns nothing; it leaves a state file behind that says so.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from attrs import evolve

from trio_kubelet.config.cpu_policy import NONE, STATIC
from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.state_file import StateFile
from trio_kubelet.resource_managers.cpu_assignment import NOTHING
from trio_kubelet.resource_managers.cpu_draft import (
    ContainerCpus,
    CpuDraft,
    StaticCpuPolicy,
    exclusive_cpu_counts,
    whole_cpu_count,
)
from trio_kubelet.resource_managers.cpu_sets import CpuSet, cpu_list, parsed_cpus
from trio_kubelet.resource_managers.cpu_state import FILE, CpuState, parsed, printed, repaired
from trio_kubelet.resource_managers.machine_topology import Level, MachineTopology
from trio_kubelet.resource_managers.placement import AssignmentKind, Boundary, RefusedError
from trio_kubelet.resource_managers.pod_level import PodLevel
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("resources")

V = TypeVar("V")


class CpuManager:
    """Owns what is assigned to whom. Plain methods but for those that touch the disk.

    Without a policy nothing is assigned; `policy` is that of the CPUs that are online. The file is
    in `root`, for threads of `limiter`. `on_change` is called when the CPUs of containers have
    changed, `on_pinned` for each container that was to have CPUs of its own, with True if it got
    them, `on_assigned` and `on_aligned` for each that got some, and for each boundary that those
    do not reach across.
    """

    def __init__(
        self, policy: StaticCpuPolicy | None, root: Path, limiter: trio.CapacityLimiter
    ) -> None:
        self.policy = policy
        self._static = policy
        self._file = StateFile(root / FILE, limiter, self._state, printed)
        self._assignments: dict[str, ContainerCpus] = {}
        self._wholes: dict[str, CpuSet] = {}
        self._sharing: dict[str, frozenset[str]] = {}
        self.on_change: Callbacks[[]] = Callbacks()
        self.on_pinned: Callbacks[[bool]] = Callbacks()
        self.on_assigned: Callbacks[[AssignmentKind]] = Callbacks()
        self.on_aligned: Callbacks[[Boundary]] = Callbacks()
        self._share_rest()

    @property
    def assigned(self) -> CpuSet:
        """All CPUs that containers have for themselves."""
        assigned = (cpus for each in self._assignments.values() for cpus in each.values())
        return NOTHING.union(*assigned, *self._wholes.values())

    def assigned_to(self, uid: str) -> CpuSet:
        """The CPUs that a pod and its containers have for themselves."""
        whole = self._wholes.get(uid, NOTHING)
        return whole.union(*self._assignments.get(uid, {}).values())

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
            self._assignments = dict(kept.assignments)
            self._wholes = dict(kept.wholes or {})
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
        uid, pod_level = pod.metadata.uid, self.policy.pod_level
        counts, known = exclusive_cpu_counts(pod, pod_level), self._assignments.get(uid, {})
        if not (counts or known or whole_cpu_count(pod, pod_level)):
            return None
        assigned, whole = self.assigned, self._wholes.get(uid, NOTHING)
        if anew:
            known, whole, assigned = {}, NOTHING, assigned - self.assigned_to(uid)
        return CpuDraft(pod, self.policy, self.policy.free(assigned), known, counts, whole)

    def commit(self, draft: CpuDraft) -> None:
        """Assign what was chosen."""
        new, sharing = draft.chosen.keys() - draft.known.keys(), draft.sharing
        if new:
            cpus = cpu_list(draft.whole.union(*(draft.chosen[name] for name in new)))
            log.info("exclusive CPUs assigned", pod=draft.pod.metadata.key, cpus=cpus)
        for name in new:
            self._count(draft, name, is_sharing=name in sharing)
        self._put(draft.pod.metadata.uid, draft.chosen, draft.whole, sharing)

    def _count(self, draft: CpuDraft, name: str, *, is_sharing: bool) -> None:
        """Tell of one container that was assigned CPUs."""
        if is_sharing:
            self.on_assigned.call(AssignmentKind.POD_SHARED)
            return
        kinds = AssignmentKind
        self.on_assigned.call(kinds.POD_EXCLUSIVE if draft.whole else kinds.NODE_EXCLUSIVE)
        self.on_pinned.call(True)
        caches = draft.policy.topology.group_of[Level.CACHE]
        if draft.policy.options.full_pcpus_only:
            self.on_aligned.call(Boundary.PHYSICAL_CPU)
        if len({caches[cpu] for cpu in draft.chosen[name]}) == 1:
            self.on_aligned.call(Boundary.UNCORE_CACHE)

    @property
    def assigned_by_node(self) -> Mapping[int, int]:
        """The number of CPUs of each NUMA node that somebody has alone."""
        if self.policy is None:
            return {}
        assigned, groups = self.assigned, self.policy.topology.groups[Level.NODE]
        return {node: len(cpus & assigned) for node, cpus in groups.items()}

    def release(self, uid: str) -> None:
        """Take back what a pod has: nothing of it runs any more."""
        self._put(uid, {}, NOTHING, frozenset())

    def adopt(
        self,
        topology: MachineTopology,
        pods: Iterable[Pod],
        place: Callable[[Pod, CpuDraft], None],
    ) -> None:
        """Take the machine as it is now, with CPUs that came or went while it runs.

        What is left of a container's CPUs stays its own until `place` has found it others, so that
        nobody else is given them; it raises RefusedError if there are none, and they stay.
        """
        assert self._static is not None, "no CPUs are assigned"
        online = topology.all
        self._say_what_changed(online)
        self._assignments, self._wholes = _left(self._assignments, self._wholes, online)
        # Of reserved CPUs that went one is needed at least: shared containers run somewhere.
        reserved = self._static.reserved & online or frozenset(
            {min(online - self.assigned or online)}
        )
        self.policy = evolve(self._static, topology=topology, reserved=reserved)
        for pod in pods:
            draft = self._draft_of_lost(pod)
            if draft is None:
                continue
            try:
                place(pod, draft)
            except RefusedError as error:
                words = "pod runs on fewer CPUs of its own"
                log.warning(words, pod=pod.metadata.key, error=error.refusal.message)
                continue
            self.commit(draft)
        self._file.changed()
        self._share_rest()
        self.on_change.call()

    def _say_what_changed(self, online: CpuSet) -> None:
        assert self.policy is not None
        known = self.policy.topology.all
        if came := online - known:
            log.info("CPUs came online", cpus=cpu_list(came))
        if gone := known - online:
            log.warning(
                "CPUs went offline", cpus=cpu_list(gone), held=cpu_list(gone & self.assigned)
            )

    def _draft_of_lost(self, pod: Pod) -> CpuDraft | None:
        """Begin to choose CPUs for those that have fewer than they ask for; None if all have."""
        draft = self.draft(pod)
        if draft is None:
            return None
        uid, known, whole = pod.metadata.uid, dict(draft.known), draft.whole
        is_short = len(whole) < whole_cpu_count(pod, draft.policy.pod_level)
        if is_short:
            known, whole = {}, NOTHING
        elif not whole:
            known = {
                name: cpus for name, cpus in known.items() if len(cpus) >= draft.counts.get(name, 0)
            }
        if not is_short and draft.counts.keys() <= known.keys():
            return None
        held = self.assigned - (self.assigned_to(uid) - whole.union(*known.values()))
        return CpuDraft(pod, draft.policy, draft.policy.free(held), known, draft.counts, whole)

    def cpus_of_pod(self, uid: str) -> ContainerCpus:
        """Return the CPUs that containers of a pod have for themselves, by container."""
        sharing = self._sharing.get(uid, frozenset())
        assigned = self._assignments.get(uid, {})
        return {name: cpus for name, cpus in assigned.items() if name not in sharing}

    def whole_of(self, uid: str) -> CpuSet:
        """Return the CPUs that a pod has as one part, slices of containers included."""
        return self._wholes.get(uid, NOTHING)

    def cpus_of(self, uid: str, container_name: str) -> CpuSet | None:
        """Return the CPUs that only a container, or its pod, may use; None if all others may."""
        return self._assignments.get(uid, {}).get(container_name)

    def is_alone(self, uid: str, container_name: str) -> bool:
        """True if a container has CPUs for itself, which no other of its pod shares with it."""
        is_sharing = container_name in self._sharing.get(uid, ())
        return container_name in self._assignments.get(uid, {}) and not is_sharing

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

    def _put(self, uid: str, cpus: ContainerCpus, whole: CpuSet, sharing: frozenset[str]) -> None:
        _set(self._sharing, uid, sharing)
        if self._assignments.get(uid, {}) == cpus and self._wholes.get(uid, NOTHING) == whole:
            return
        _set(self._assignments, uid, cpus)
        _set(self._wholes, uid, whole)
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
            wholes=None if self.policy.pod_level is PodLevel.SHARED else dict(self._wholes),
        )


def _left(
    assignments: Mapping[str, ContainerCpus], wholes: Mapping[str, CpuSet], online: CpuSet
) -> tuple[dict[str, ContainerCpus], dict[str, CpuSet]]:
    """Return what is left of all that pods have when only these CPUs are online."""
    left: dict[str, ContainerCpus] = {}
    for uid, containers in assignments.items():
        parts = {name: cpus & online for name, cpus in containers.items() if cpus & online}
        _set(left, uid, parts)
    return left, {uid: cpus & online for uid, cpus in wholes.items() if cpus & online}


def _set(values: dict[str, V], uid: str, value: V) -> None:
    """Put the value of a pod; an empty one leaves none."""
    values.pop(uid, None)
    if value:
        values[uid] = value
