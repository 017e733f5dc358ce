"""The limit of pods that are being started at once.

A burst of pods started all at once makes each of them slow, and all of them late. A few at a
time are as fast together, and the first are ready early. A slot is held for one call or a few,
never for a wait of unknown length (an image, a hook). The priority of the pod counts first, and a
static pod is before others of the same: a full node that has booted starts what the others need
before them. Among those of a priority namespaces take turns: thousands of containers of one stand
before the first pod of no other. Of a namespace, what is nearly done goes first: a pod that has its
sandbox takes precedence over one that has none. A call that hangs keeps nobody else's pods from
starting.
"""

import math
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import priority_order
from trio_kubelet.runtime.lifecycle.activity import Activity

HELD_SECONDS = 5.0
"""A start that takes longer waits for a disk or a network: it goes on, and others start, too."""


class StartStage(IntEnum):
    """The call that a pod wants a slot for; of a namespace the lower goes first."""

    CONTAINER = 0
    SANDBOX = 1


_Priority = tuple[int, bool]
"""The priority order of a pod; what is less goes first."""


class _Waiting:
    """The starts of one priority that wait: in turns of namespaces, of each by stages."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, dict[StartStage, dict[trio.Event, None]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def put(self, namespace: str, stage: StartStage, slot: trio.Event) -> None:
        stages = self._namespaces.setdefault(namespace, {each: {} for each in StartStage})
        stages[stage][slot] = None

    def take(self) -> trio.Event:
        """Take the next one; the turn of its namespace has passed then."""
        namespace, stages = next(iter(self._namespaces.items()))
        stage = next(each for each in StartStage if stages[each])
        slot = next(iter(stages[stage]))
        self._namespaces.move_to_end(namespace)
        self.remove(namespace, stage, slot)
        return slot

    def remove(self, namespace: str, stage: StartStage, slot: trio.Event) -> None:
        stages = self._namespaces[namespace]
        del stages[stage][slot]
        if not any(stages.values()):
            del self._namespaces[namespace]


class StartLimiter:
    """A limiter whose waiters are served by priority, by turns of their namespaces, by stage.

    A start that holds a slot keeps `activity` busy.
    """

    def __init__(self, slots: int, activity: Activity | None = None) -> None:
        self._free = slots
        self._activity = activity or Activity()
        self._held: dict[trio.Event, float] = {}
        """The times at which slots were given, the oldest first."""
        self._waiting: dict[_Priority, _Waiting] = {}

    @asynccontextmanager
    async def slot(self, stage: StartStage, pod: Pod) -> AsyncIterator[None]:
        """Hold a slot. A wait that is cancelled holds nothing afterwards."""
        slot, namespace = trio.Event(), pod.metadata.namespace
        priority = priority_order(pod)
        self._waiting.setdefault(priority, _Waiting()).put(namespace, stage, slot)
        try:
            await self._wait(slot)
            with self._activity.busy():
                yield
        finally:
            if slot.is_set():
                self._release(slot)
            else:
                self._waiting[priority].remove(namespace, stage, slot)
                self._forget_if_empty(priority)

    async def _wait(self, slot: trio.Event) -> None:
        while True:
            self._take_back()
            self._give()
            if slot.is_set():
                return
            oldest = next(iter(self._held.values()), math.inf)
            with trio.move_on_at(oldest + HELD_SECONDS):
                await slot.wait()

    def _take_back(self) -> None:
        """Take the slots of those that have had them for long; they go on without."""
        now = trio.current_time()
        for slot, since in [*self._held.items()]:
            if since + HELD_SECONDS > now:
                return
            self._release(slot)

    def _release(self, slot: trio.Event) -> None:
        if self._held.pop(slot, None) is not None:
            self._free += 1
            self._give()

    def _give(self) -> None:
        while self._free and self._waiting:
            first = min(self._waiting)
            slot = self._waiting[first].take()
            self._forget_if_empty(first)
            self._free -= 1
            self._held[slot] = trio.current_time()
            slot.set()

    def _forget_if_empty(self, priority: _Priority) -> None:
        if not self._waiting[priority]:
            del self._waiting[priority]


def default_start_limiter(activity: Activity) -> StartLimiter:
    """Twice as many starts at once as there are cores: the fastest width measured."""
    return StartLimiter(max(2, 2 * (os.cpu_count() or 1)), activity)
