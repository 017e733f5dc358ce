"""The memory manager: the owner of the blocks that containers have of NUMA nodes, and their record.

A pod is given blocks at its admission (`memory_draft.py`): its containers may use memory of their
nodes only. The policy `None` gives none; it leaves a state file behind that says so.
"""

from collections.abc import Mapping
from pathlib import Path

import structlog
import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.kernel.state_file import StateFile
from trio_kubelet.resource_managers.hints import nodes_in
from trio_kubelet.resource_managers.memory_draft import (
    ContainerBlocks,
    MemoryBlock,
    MemoryDraft,
    StaticMemoryPolicy,
    blocks_mask,
    wanted_memory,
    whole_memory,
)
from trio_kubelet.resource_managers.memory_state import (
    FILE,
    NONE,
    Blocks,
    MemoryState,
    Wholes,
    held_blocks,
    memory_state,
    parsed,
    printed,
    repaired,
)
from trio_kubelet.resource_managers.placement import AssignmentKind
from trio_kubelet.tasks.callbacks import Callbacks

log = structlog.get_logger("resources")


class MemoryManager:
    """Owns the blocks. Plain methods but for those that touch the disk.

    Without a policy there are none. The file is in `root`, for threads of `limiter`. `on_pinned` is
    called for each container that was to have memory of certain nodes, with True if it got it.
    """

    def __init__(
        self, policy: StaticMemoryPolicy | None, root: Path, limiter: trio.CapacityLimiter
    ) -> None:
        self.policy = policy
        self._file = StateFile(root / FILE, limiter, self._kept, self._printed)
        self._blocks: dict[str, ContainerBlocks] = {}
        self._wholes: dict[str, tuple[MemoryBlock, ...]] = {}
        self.on_pinned: Callbacks[[bool]] = Callbacks()
        self.on_assigned: Callbacks[[AssignmentKind]] = Callbacks()

    @property
    def blocks(self) -> Mapping[str, ContainerBlocks]:
        """The blocks of all pods, by their UIDs."""
        return self._blocks

    async def load(self) -> None:
        """Read what an earlier agent kept, this one or the Go kubelet. Before the first pod."""
        found = await self._file.read(parsed)
        if self.policy is not None and found is not None:
            kept, lines = repaired(found, self.policy)
            self._blocks, self._wholes = dict(kept.blocks), dict(kept.wholes or {})
            for line in lines:
                self._file.repaired(line)
        state = self._state(*self._kept())
        is_new = found != state or (found is not None and found.machine != state.machine)
        if (found is not None or self.policy is not None) and is_new:
            self._file.changed()
        await self._file.keep()

    def draft(self, pod: Pod, *, anew: bool = False) -> MemoryDraft | None:
        """Begin to choose blocks for a pod's containers; None if it is to have none.

        `anew`: what it has already does not count.
        """
        if self.policy is None:
            return None
        uid, pod_level = pod.metadata.uid, self.policy.pod_level
        wanted, known = wanted_memory(pod, pod_level), self._blocks.get(uid, {})
        if not (wanted or known or whole_memory(pod, pod_level)):
            return None
        whole = self._wholes.get(uid, ())
        if anew:
            known, whole = {}, ()
        used: list[MemoryBlock] = [
            block
            for other in self._blocks
            if other != uid
            for block in held_blocks(other, self._blocks, self._wholes)
        ]
        return MemoryDraft(pod, self.policy, used, known, wanted, whole)

    def commit(self, draft: MemoryDraft) -> None:
        """Assign what was chosen."""
        if new := [draft.chosen[name] for name in draft.chosen.keys() - draft.known.keys()]:
            nodes = nodes_in(blocks_mask(block for blocks in new for block in blocks))
            log.info("memory of NUMA nodes assigned", pod=draft.pod.metadata.key, nodes=nodes)
        for name in draft.chosen.keys() - draft.known.keys():
            self.on_pinned.call(True)
            self.on_assigned.call(_kind(draft, name))
        self._put(draft.pod.metadata.uid, draft.chosen, draft.whole)

    def release(self, uid: str) -> None:
        """Take back what a pod has: nothing of it runs any more."""
        self._put(uid, {}, ())

    def whole_of(self, uid: str) -> tuple[MemoryBlock, ...]:
        """Return the blocks that a pod has as one part, slices of containers included."""
        return self._wholes.get(uid, ())

    def nodes_of(self, uid: str, container_name: str) -> tuple[int, ...]:
        """Return the NUMA nodes whose memory a container may use; none if it may use all."""
        return nodes_in(blocks_mask(self._blocks.get(uid, {}).get(container_name, ())))

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all pods that have blocks."""
        return frozenset(self._blocks)

    async def keep(self) -> bool:
        """Return when all that was assigned is on the disk, or could not be; True if it is."""
        return await self._file.keep()

    def _put(self, uid: str, blocks: ContainerBlocks, whole: tuple[MemoryBlock, ...]) -> None:
        if self._blocks.get(uid, {}) == blocks and self._wholes.get(uid, ()) == whole:
            return
        self._blocks.pop(uid, None)
        self._wholes.pop(uid, None)
        if blocks:
            self._blocks[uid] = blocks
        if whole:
            self._wholes[uid] = whole
        self._file.changed()

    def _kept(self) -> tuple[Blocks, Wholes]:
        return dict(self._blocks), dict(self._wholes)

    def _printed(self, kept: tuple[Blocks, Wholes]) -> str:
        return printed(self._state(*kept))

    def _state(self, blocks: Blocks, wholes: Wholes) -> MemoryState:
        if self.policy is None:
            return MemoryState(policy=NONE)
        return memory_state(self.policy, blocks, wholes)


def _kind(draft: MemoryDraft, name: str) -> AssignmentKind:
    if not draft.whole:
        return AssignmentKind.NODE_EXCLUSIVE
    kinds = AssignmentKind
    return kinds.POD_EXCLUSIVE if name in draft.wanted else kinds.POD_SHARED
