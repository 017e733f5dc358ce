"""Shortages of the node: others, or a container, use so much that too little is left."""

import random
from collections.abc import Callable, Mapping

import trio
from attrs import evolve

from tests.simulation.evictions import is_critical
from tests.simulation.load import LIMITS, MI, SOFT_MEMORY, USES, Limit, runs
from tests.simulation.node import Node
from tests.simulation.record import Kind, Record
from trio_kubelet.config.eviction import Resource
from trio_kubelet.hollow.records import ContainerUse, HollowContainer, HollowSandbox

KI = 1 << 10
MOST_LACKING: Mapping[Resource, int] = {
    Resource.MEMORY: 40 * MI,
    Resource.STORAGE: 400 * KI,
    Resource.INODES: 2000,
    Resource.PIDS: 60,
}
"""The amounts that a few pods use."""
FIELDS: Mapping[Resource, str] = {
    Resource.MEMORY: "memory_bytes",
    Resource.STORAGE: "layer_bytes",
    Resource.INODES: "layer_inodes",
    Resource.PIDS: "tasks",
}


class Shortages:
    """Bad luck with the node's resources. `start_soon` runs what takes time."""

    def __init__(
        self,
        node: Node,
        record: Record,
        chance: random.Random,
        start_soon: Callable[..., None],
    ) -> None:
        self._node = node
        self._record = record
        self._chance = chance
        self._start_soon = start_soon
        self._short: set[Resource] = set()

    def on_event(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Observer of the runtime: containers use more or less from the beginning."""
        if kind == Kind.CONTAINER_CREATED_EVENT and container_id != sandbox.id:
            container = sandbox.containers[container_id]
            container.use = ContainerUse(
                memory_bytes=None if _is_limited(container) else self._chance.choice((4, 8)) * MI,
                tasks=self._chance.randint(1, 20),
                layer_bytes=self._chance.choice((16, 64, 128)) * KI,
                layer_inodes=self._chance.randint(10, 500),
            )
            self._node.load.update(sandbox)

    def begin(self) -> None:
        """Let too little of something be left; rather where there is a choice of pods to go."""
        if self._evictable() < 3 and self._chance.random() < 0.5:
            return
        limit = self._chance.choice(LIMITS)
        if limit.resource in self._short:
            return
        self._short.add(limit.resource)
        seconds = (
            self._chance.uniform(60, 150) if limit is SOFT_MEMORY else self._chance.uniform(2, 60)
        )
        amount = limit.least - self._chance.randint(1, MOST_LACKING[limit.resource])
        container = self._some_container(limit.resource) if self._chance.random() < 0.5 else None
        if container is None:
            self._start_soon(self._for_a_while, limit, amount, seconds)
        else:
            more = self._node.load.available(limit.resource) - amount
            self._start_soon(self._while_greedy, limit.resource, container, more, seconds)

    def _evictable(self) -> int:
        """The number of pods that run and may be evicted."""
        running = {
            str(c.sandbox.config.metadata.uid) for c in self._node.runtime.containers if runs(c)
        }
        return sum(
            uid in running and not (wanted.deleted or is_critical(wanted))
            for uid, wanted in self._record.wanted.items()
        )

    def exceed_limit(self) -> None:
        """Let a container write more than it may."""
        limited = [
            each
            for each in self._node.runtime.containers
            if runs(each) and self._has_storage_limit(each)
        ]
        if limited:
            container = self._chance.choice(limited)
            self._use(container, Resource.STORAGE, 2 * MI)

    async def _for_a_while(self, limit: Limit, amount: int, seconds: float) -> None:
        self._record.note("short", limit.resource, amount, f"for {seconds:.1f} s")
        self._node.load.leave(limit.resource, amount)
        await trio.sleep(seconds)
        self._node.load.relent(limit.resource)
        self._record.note("enough", limit.resource)
        self._short.discard(limit.resource)

    async def _while_greedy(
        self, resource: Resource, container: HollowContainer, more: int, seconds: float
    ) -> None:
        before = USES[resource](container)
        self._record.note("greedy", container.id[:12], resource, more, f"for {seconds:.1f} s")
        self._use(container, resource, before + more)
        await trio.sleep(seconds)
        self._use(container, resource, before)
        self._record.note("modest", container.id[:12], resource)
        self._short.discard(resource)

    def _use(self, container: HollowContainer, resource: Resource, amount: int) -> None:
        container.use = evolve(container.use, **{FIELDS[resource]: amount})
        self._node.load.update(container.sandbox)

    def _some_container(self, resource: Resource) -> HollowContainer | None:
        """A running container that may use as much as it likes."""
        some = [
            each
            for each in self._node.runtime.containers
            if runs(each) and not (resource is Resource.MEMORY and _is_limited(each))
        ]
        return self._chance.choice(some) if some else None

    def _has_storage_limit(self, container: HollowContainer) -> bool:
        wanted = self._record.wanted.get(container.sandbox.config.metadata.uid)
        return wanted is not None and bool(wanted.shape.storage_limit_bytes)


def _is_limited(container: HollowContainer) -> bool:
    return bool(container.resources.memory_limit_in_bytes)
