"""Turns of owners: a queue by turns, and a few turns in each round of the event loop.

A handshake costs a millisecond of the processor at the moment at which its bytes are read, the stop
of a container as much, a request that is not let in some hundred microseconds, and so does each
piece of a stream. Hundreds of them that are ready at once would run one after the other with
nothing between them. So each of them waits for its turn: there are a few in each round of the event
loop, and whoever they are counted for (peers, or namespaces) have them one after the other.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

import trio

TURNS_IN_A_ROUND = 8

T = TypeVar("T", bound=Hashable)

Turn = Callable[[], Awaitable[None]]
"""Waits for the next turn of whoever it is for."""


class TurnQueue(Generic[T]):
    """Items that wait, each once for its owner; their owners take turns.

    The next item is of the owner whose last turn is longest ago, and the oldest of that owner's:
    first come, first served would let one with a thousand items stand before everybody else. An
    owner costs nothing once none of its items waits.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, dict[T, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def owners(self) -> Iterable[Hashable]:
        """The owners of whom items wait, in the order of their turns."""
        return self._queues.keys()

    def put(self, owner: Hashable, item: T) -> None:
        """Let an item wait, behind the others of its owner."""
        self._queues.setdefault(owner, {})[item] = None

    def take(self) -> T:
        """Take the next item. Raises KeyError if there is none."""
        item = self.take_if(lambda _owner: True)
        if item is None:
            raise KeyError("no item waits")
        return item

    def take_if(self, may_have_one: Callable[[Hashable], bool]) -> T | None:
        """Take the next item of the owners that may have a turn, if there is one."""
        owner = next(filter(may_have_one, self._queues), None)
        if owner is None:
            return None
        item = next(iter(self._queues[owner]))
        self.remove(owner, item)
        if owner in self._queues:
            self._queues.move_to_end(owner)
        return item

    def remove(self, owner: Hashable, item: T) -> None:
        """Take this item, out of its turn. Raises KeyError if it does not wait."""
        queue = self._queues[owner]
        del queue[item]
        if not queue:
            del self._queues[owner]


class Turns:
    """Lets a few tasks go on in each round of the event loop, while `give` runs."""

    __slots__ = ("_asked", "_left", "_waiting")

    def __init__(self) -> None:
        self._asked = trio.Event()
        self._left = TURNS_IN_A_ROUND
        """The turns of this round that nobody has had; none while somebody waits."""
        self._waiting = TurnQueue[trio.Event]()

    async def wait(self, owner: Hashable) -> None:
        """Wait for a turn of this owner. One that is free is had at once, without a checkpoint."""
        self._asked.set()
        if self._left:
            self._left -= 1
            return
        called = trio.Event()
        self._waiting.put(owner, called)
        try:
            await called.wait()
        except trio.Cancelled:
            if not called.is_set():
                self._waiting.remove(owner, called)
            raise

    async def give(self) -> None:
        """Give turns, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            self._left = TURNS_IN_A_ROUND
            while self._waiting and self._left:
                self._waiting.take().set()
                self._left -= 1
                self._asked.set()
