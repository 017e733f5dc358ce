"""The limit of pods that are being started at once.

A burst of pods started all at once makes each of them slow, and all of them late. A few at a
time are as fast together, and the first are ready early. A slot is held for one call or a few,
never for a wait of unknown length (an image, a hook). What is nearly done goes first: a pod that
has its sandbox takes precedence over one that has none. Then the priority of the pod counts, and a
static pod is before others of the same: a full node that has booted starts what the others need
before them. Namespaces take turns, and a call that hangs keeps nobody else's pods from starting.
"""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import priority_order
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.tasks.turns import TurnQueue

HELD_SECONDS = 5.0
"""A start that takes longer waits for a disk or a network: it goes on, and others start, too."""


class StartStage(IntEnum):
    """The call that a pod wants a slot for; lower goes first."""

    CONTAINER = 0
    SANDBOX = 1


_Precedence = tuple[StartStage, int, bool]
"""Stage and priority order of a pod; what is less goes first."""


class StartLimiter:
    """A limiter whose waiters are served by stage and priority, then by turns of their namespaces.

    A start that holds a slot keeps `activity` busy.
    """

    def __init__(self, slots: int, activity: Activity | None = None) -> None:
        self._free = slots
        self._activity = activity or Activity()
        self._held: dict[trio.Event, float] = {}
        """The times at which slots were given, the oldest first."""
        self._waiting: dict[_Precedence, TurnQueue[trio.Event]] = {}

    @asynccontextmanager
    async def slot(self, stage: StartStage, pod: Pod) -> AsyncIterator[None]:
        """Hold a slot. A wait that is cancelled holds nothing afterwards."""
        slot, namespace = trio.Event(), pod.metadata.namespace
        precedence = (stage, *priority_order(pod))
        self._waiting.setdefault(precedence, TurnQueue()).put(namespace, slot)
        try:
            await self._wait(slot)
            with self._activity.busy():
                yield
        finally:
            if slot.is_set():
                self._release(slot)
            else:
                self._waiting[precedence].remove(namespace, slot)
                self._forget_if_empty(precedence)

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

    def _forget_if_empty(self, precedence: _Precedence) -> None:
        if not self._waiting[precedence]:
            del self._waiting[precedence]


def default_start_limiter(activity: Activity) -> StartLimiter:
    """Twice as many starts at once as there are cores: the fastest width measured."""
    return StartLimiter(max(2, 2 * (os.cpu_count() or 1)), activity)
