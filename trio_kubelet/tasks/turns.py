"""Rounds of the event loop in which a few of those that wait go on: they hold up nobody else.

A handshake costs a millisecond of the processor at the moment at which its bytes are read, the stop
of a container as much, a request that is not let in some hundred microseconds, and so does each
piece of a stream. Hundreds of them that are ready at once would run one after the other with
nothing between them. So each of them waits for its turn: there are a few in each round of the event
loop, and whoever they are counted for (peers, or namespaces) have them one after the other.
"""

from collections.abc import Awaitable, Callable, Hashable

import trio

from trio_kubelet.tasks.turn_queue import TurnQueue

TURNS_IN_A_ROUND = 8

Turn = Callable[[], Awaitable[None]]
"""Waits for the next turn of whoever it is for."""


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
