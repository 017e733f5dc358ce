"""Slots for work at once, shared by those that ask for it: namespaces and their pods, or peers.

A plain limiter serves first come, first served: one pod whose twenty reads hang has all slots, and
a queue of its hundred further ones stands before everybody else's. Here each owner has at most so
many slots at a time, and so has each of its pods, as one tenant may have many. Owners who wait are
served in turns, and within an owner's turns its pods are. As a tenant may have several namespaces,
too, a slot can be given out again when it was held for so long that its work must hang: from then
on it counts for its owner and pod alone. And some slots can be reserved for owners that hold none,
so that a few with all of theirs do not hold up one that comes later.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import trio

from trio_kubelet.tasks.threads import run_in_thread

T = TypeVar("T")

ALL_PODS = ""
"""The owner of work for all pods at once, and of what is left of pods of which no more is known."""


class FairLimiter:
    """So many slots in all, so many for one owner, and so many for one pod of it.

    An owner is a namespace, a user or a peer, and costs nothing once nobody holds or awaits one of
    its slots.
    """

    def __init__(
        self,
        slots: int,
        slots_of_owner: int,
        slots_of_pod: int | None = None,
        *,
        stuck_seconds: float = math.inf,
        most_held: int = 0,
        reserved: int = 0,
    ) -> None:
        """A slot that was held for `stuck_seconds` is no longer one of the `slots`.

        But no more than `most_held` are held in all, if that is more than `slots`. The last
        `reserved` of the `slots` are for owners that hold none.
        """
        self._held_by_owner: Counter[str] = Counter()
        self._held_by_pod: Counter[_Key] = Counter()
        self._holders: dict[object, _Key] = {}
        self._stuck_seconds = stuck_seconds
        self._most_held = most_held
        self._reserved = reserved
        self._counted: dict[object, float] = {}
        """The holders of the `slots`, and since when they have them, the oldest first."""
        self._waiting: OrderedDict[str, OrderedDict[str, _Waits]] = OrderedDict()
        """Those that wait for each owner's pods."""
        self.set_slots(slots, slots_of_owner, slots_of_pod)

    def set_slots(self, slots: int, slots_of_owner: int, slots_of_pod: int | None = None) -> None:
        """Give out so many from now on; of those that are held none is taken away."""
        if not 0 < slots_of_owner <= slots:
            raise ValueError(f"slots_of_owner {slots_of_owner}: must be from 1 to {slots}")
        if slots_of_pod is None:
            slots_of_pod = slots_of_owner
        if not 0 < slots_of_pod <= slots_of_owner:
            raise ValueError(f"slots_of_pod {slots_of_pod}: must be from 1 to {slots_of_owner}")
        self._slots = slots
        self._slots_of_owner = slots_of_owner
        self._slots_of_pod = slots_of_pod
        while self._serve_next():
            pass

    def share(self, owner: str, pod: str = "") -> "Share":
        """The slots as this pod of an owner sees them: to hold one, or for work in a thread."""
        return Share(self, (owner, pod))

    def share_of(self, pod: "_Pod") -> "Share":
        """The slots as a pod of a namespace sees them."""
        return self.share(pod.namespace, pod.uid)

    @property
    def held(self) -> int:
        """The number of slots that are held now."""
        return len(self._holders)

    async def _acquire(self, key: "_Key", holder: object) -> None:
        """Wait for a slot. Cancelled, it takes none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if holder in self._holders:
            raise RuntimeError("this holder has a slot already")
        self._let_go_of_stuck()
        if self._may_have_one(key):
            self._take(key, holder)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        owner, pod = key
        served = trio.Event()
        self._waiting.setdefault(owner, OrderedDict()).setdefault(pod, {})[served] = holder
        try:
            await self._wait(served)
        except BaseException:
            if served.is_set():
                self._release(holder)
            else:
                del self._waiting[owner][pod][served]
                self._forget_if_empty(key)
            raise

    async def _wait(self, served: trio.Event) -> None:
        while not served.is_set():
            oldest = next(iter(self._counted.values()), math.inf)
            with trio.move_on_at(oldest + self._stuck_seconds):
                await served.wait()
            self._let_go_of_stuck()

    def _let_go_of_stuck(self) -> None:
        """Give out the slots of those that have had theirs for too long; they go on without."""
        now = trio.current_time()
        for holder, since in [*self._counted.items()]:
            if since + self._stuck_seconds > now:
                return
            del self._counted[holder]
            self._serve_next()

    def _release(self, holder: object) -> None:
        key = self._holders.pop(holder)
        self._counted.pop(holder, None)
        self._held_by_owner -= Counter((key[0],))  # without those that have none
        self._held_by_pod -= Counter((key,))
        self._serve_next()

    def _serve_next(self) -> bool:
        """Give a free slot to the pod whose turn it is, and put it and its owner last.

        False if there is none, or nobody who may have it.
        """
        key = self._next()
        if key is None:
            return False
        owner, pod = key
        waits = self._waiting[owner][pod]
        served = next(iter(waits))
        holder = waits.pop(served)
        self._waiting[owner].move_to_end(pod)
        self._waiting.move_to_end(owner)
        self._forget_if_empty(key)
        self._take(key, holder)
        served.set()
        return True

    def _next(self) -> "_Key | None":
        if not self._free_slots():
            return None
        # Those that are passed over hold a slot: they are as many as there are slots at most.
        for owner, pods in self._waiting.items():
            if self._owner_may_have_one(owner):
                for pod in pods:
                    if self._may_have_one((owner, pod)):
                        return owner, pod
        return None

    def _may_have_one(self, key: "_Key") -> bool:
        return self._owner_may_have_one(key[0]) and self._held_by_pod[key] < self._slots_of_pod

    def _owner_may_have_one(self, owner: str) -> bool:
        held = self._held_by_owner[owner]
        reserved = self._reserved if held else 0
        return self._free_slots() > reserved and held < self._slots_of_owner

    def _free_slots(self) -> int:
        most_held = max(self._most_held, self._slots)
        return max(0, min(self._slots - len(self._counted), most_held - len(self._holders)))

    def _forget_if_empty(self, key: "_Key") -> None:
        owner, pod = key
        if not self._waiting[owner][pod]:
            del self._waiting[owner][pod]
        if not self._waiting[owner]:
            del self._waiting[owner]

    def _take(self, key: "_Key", holder: object) -> None:
        self._held_by_owner[key[0]] += 1
        self._held_by_pod[key] += 1
        self._holders[holder] = key
        self._counted[holder] = trio.current_time()


_Key = tuple[str, str]
"""An owner and a pod of it; the pod is empty where an owner's are not told apart."""


class _Pod(Protocol):
    """A pod, as its metadata or its observation in the runtime names it."""

    @property
    def namespace(self) -> str: ...

    @property
    def uid(self) -> str: ...


_Waits = dict[trio.Event, object]
"""Events that tell waiting tasks of their slot, in their order, each with the slot's holder."""


class Share:
    """A pod's way to the slots: `async with share:`, or `await share.run_sync(work)`."""

    __slots__ = ("_key", "_limiter")

    def __init__(self, limiter: FairLimiter, key: _Key) -> None:
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
