"""Clients that have proven nothing yet take turns, and hold up neither the loop nor each other.

A handshake costs a millisecond of the processor at the moment at which its bytes are read, a
request that is not let in some hundred microseconds. Five hundred that are ready at once would run
one after the other with nothing between them. So each read of such a connection waits for its turn:
a few for each round of the event loop, peers one after the other, so that many connections of one
delay no other.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Hashable

import trio

TURNS_IN_A_ROUND = 8

Turn = Callable[[], Awaitable[None]]
"""Waits for the turn of a peer."""


class Turns:
    """Lets a few tasks go on in each round of the event loop, while `give` runs."""

    __slots__ = ("_asked", "_queues")

    def __init__(self) -> None:
        self._asked = trio.Event()
        self._queues: dict[Hashable, deque[trio.Event]] = {}

    async def wait(self, peer: Hashable) -> None:
        """Wait for a turn of this peer."""
        called = trio.Event()
        self._queues.setdefault(peer, deque()).append(called)
        self._asked.set()
        try:
            await called.wait()
        except trio.Cancelled:
            if not called.is_set():
                self._leave(peer, called)
            raise

    async def give(self) -> None:
        """Give turns, until cancelled."""
        while True:
            while self._queues:
                for _ in range(TURNS_IN_A_ROUND):
                    self._call_next()
                await trio.lowlevel.checkpoint()
            self._asked = trio.Event()
            await self._asked.wait()

    def _leave(self, peer: Hashable, called: trio.Event) -> None:
        queue = self._queues[peer]
        queue.remove(called)
        if not queue:
            del self._queues[peer]

    def _call_next(self) -> None:
        peer = next(iter(self._queues), None)
        if peer is None:
            return
        queue = self._queues.pop(peer)
        queue.popleft().set()
        if queue:
            self._queues[peer] = queue  # behind the other peers
