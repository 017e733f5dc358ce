"""The limit of pods that are being started at once.

A burst of pods started all at once makes each of them slow, and all of them late. A few at a
time are as fast together, and the first are ready early. A slot is held for one call or a few,
never for a wait of unknown length (an image, a hook). What is nearly done goes first: a pod that
has its sandbox takes precedence over one that has none, a static pod over others. Namespaces take
turns, and a call that hangs keeps nobody else's pods from starting.
"""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

import trio

from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.tasks.turn_queue import TurnQueue

HELD_SECONDS = 5.0
"""A start that takes longer waits for a disk or a network: it goes on, and others start, too."""


class Precedence(IntEnum):
    """The order for the next free slot; lower goes first."""

    STATIC_CONTAINER = 0
    CONTAINER = 1
    STATIC_SANDBOX = 2
    SANDBOX = 3


class StartLimiter:
    """A limiter whose waiters are served by precedence, then by turns of their namespaces.

    A start that holds a slot keeps `activity` busy.
    """

    def __init__(self, slots: int, activity: Activity | None = None) -> None:
        self._free = slots
        self._activity = activity or Activity()
        self._held: dict[trio.Event, float] = {}
        """The times at which slots were given, the oldest first."""
        self._waiting = {each: TurnQueue[trio.Event]() for each in Precedence}

    @asynccontextmanager
    async def slot(self, precedence: Precedence, namespace: str) -> AsyncIterator[None]:
        """Hold a slot. A wait that is cancelled holds nothing afterwards."""
        slot = trio.Event()
        self._waiting[precedence].put(namespace, slot)
        try:
            await self._wait(slot)
            with self._activity.busy():
                yield
        finally:
            if slot.is_set():
                self._release(slot)
            else:
                self._waiting[precedence].remove(namespace, slot)

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
        for waiting in self._waiting.values():
            while self._free and waiting:
                slot = waiting.take()
                self._free -= 1
                self._held[slot] = trio.current_time()
                slot.set()


def default_start_limiter(activity: Activity) -> StartLimiter:
    """Twice as many starts at once as there are cores: the fastest width measured."""
    return StartLimiter(max(2, 2 * (os.cpu_count() or 1)), activity)
