"""How many pods are being started at once.

A burst of pods started all at once makes each of them slow, and all of them late. A few at a
time are as fast together, and the first are ready early. A slot is held for one call or a few,
never for a wait of unknown length (an image, a hook). Who is nearly done goes first: a pod that
has its sandbox takes precedence over one that has none, a static pod over others.
"""

import heapq
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

import trio

from trio_kubelet.runtime.lifecycle.activity import Activity


class Precedence(IntEnum):
    """Who gets the next free slot; lower goes first."""

    STATIC_CONTAINER = 0
    CONTAINER = 1
    STATIC_SANDBOX = 2
    SANDBOX = 3


class StartLimiter:
    """A limiter whose waiters are served by precedence, then in order of arrival.

    Whoever holds a slot is a start of `activity`.
    """

    def __init__(self, slots: int, activity: Activity | None = None) -> None:
        self._free = slots
        self._activity = activity or Activity()
        self._arrivals = 0
        self._waiting: list[tuple[int, int, trio.Event]] = []

    @asynccontextmanager
    async def slot(self, precedence: Precedence) -> AsyncIterator[None]:
        """Hold a slot. A wait that is cancelled holds nothing afterwards."""
        await self._acquire(precedence)
        with self._activity.starting():
            try:
                yield
            finally:
                self._release()

    async def _acquire(self, precedence: Precedence) -> None:
        if self._free > 0:
            self._free -= 1
            return
        self._arrivals += 1
        turn = trio.Event()
        waiting = (int(precedence), self._arrivals, turn)
        heapq.heappush(self._waiting, waiting)
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():
                self._release()
            else:
                self._waiting.remove(waiting)
                heapq.heapify(self._waiting)
            raise

    def _release(self) -> None:
        """Give the slot to whoever is next; it is not free in between."""
        if self._waiting:
            heapq.heappop(self._waiting)[2].set()
            return
        self._free += 1


def default_start_limiter(activity: Activity) -> StartLimiter:
    """Twice as many starts at once as there are cores: the fastest width measured."""
    return StartLimiter(max(2, 2 * (os.cpu_count() or 1)), activity)
