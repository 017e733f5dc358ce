"""Slots for work at once, shared by those that ask for it: by pods, or by peers.

A plain limiter serves first come, first served: one pod whose twenty reads hang has all slots, and
a queue of its hundred further ones stands before everybody else's. Here each key has at most so
many slots at a time, and those who wait are served in turns of their keys.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar, cast

import trio
from outcome import Value

from trio_kubelet.threads import run_in_thread

T = TypeVar("T")

ALL_PODS = ""
"""The key of work for all pods at once; no pod's UID is empty."""


class FairLimiter:
    """So many slots in all, and so many for one key; the keys that wait take turns.

    A key costs nothing once nobody holds or awaits one of its slots.
    """

    def __init__(self, slots: int, slots_of_key: int) -> None:
        if not 0 < slots_of_key <= slots:
            raise ValueError(f"slots_of_key {slots_of_key}: must be from 1 to {slots}")
        self._free = slots
        self._slots_of_key = slots_of_key
        self._held: dict[str, int] = {}
        self._holders: dict[object, str] = {}
        self._waiting: OrderedDict[str, deque[tuple[trio.lowlevel.Task, object]]] = OrderedDict()

    def share(self, key: str) -> "Share":
        """The slots as this key sees them: to hold one, or to run work in a thread with one."""
        return Share(self, key)

    @property
    def held(self) -> int:
        """How many slots are held now."""
        return len(self._holders)

    async def _acquire(self, key: str, holder: object) -> None:
        """Wait for a slot. Cancelled, it takes none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if holder in self._holders:
            raise RuntimeError("this holder has a slot already")
        if self._free and self._held.get(key, 0) < self._slots_of_key:
            self._take(key, holder)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        entry = (trio.lowlevel.current_task(), holder)
        self._waiting.setdefault(key, deque()).append(entry)

        def give_up(_: object) -> trio.lowlevel.Abort:
            waiting = self._waiting[key]
            waiting.remove(entry)
            if not waiting:
                del self._waiting[key]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    def _release(self, holder: object) -> None:
        key = self._holders.pop(holder)
        self._free += 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        self._serve_next()

    def _serve_next(self) -> None:
        """Give the free slot to the key whose turn it is, and put that key last."""
        for key, waiting in self._waiting.items():
            if self._held.get(key, 0) < self._slots_of_key:
                task, holder = waiting.popleft()
                if waiting:
                    self._waiting.move_to_end(key)
                else:
                    del self._waiting[key]
                self._take(key, holder)
                trio.lowlevel.reschedule(task, Value(None))
                return

    def _take(self, key: str, holder: object) -> None:
        self._free -= 1
        self._held[key] = self._held.get(key, 0) + 1
        self._holders[holder] = key


class Share:
    """One key's way to the slots: `async with share:`, or `await share.run_sync(work)`."""

    __slots__ = ("_key", "_limiter")

    def __init__(self, limiter: FairLimiter, key: str) -> None:
        self._limiter = limiter
        self._key = key

    async def acquire_on_behalf_of(self, holder: object) -> None:
        """Wait for a slot. Cancelled, it takes none."""
        await self._limiter._acquire(self._key, holder)

    def release_on_behalf_of(self, holder: object) -> None:
        """Give the slot back; the next one in turn has it at once."""
        self._limiter._release(holder)

    async def __aenter__(self) -> None:
        await self.acquire_on_behalf_of(trio.lowlevel.current_task())

    async def __aexit__(self, *_: object) -> None:
        self.release_on_behalf_of(trio.lowlevel.current_task())

    async def run_sync(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Run blocking work in a thread with a slot, and return what it returns.

        With `abandon_on_cancel` a cancelled caller goes on at once; the slot is held until the
        thread is through. Otherwise the work is finished first. What the work raises is raised.
        """
        # trio asks of a limiter only the two methods above, but types it as its own class.
        limiter = cast("trio.CapacityLimiter", self)
        return await run_in_thread(work, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
