"""TLS handshakes take turns: many at once neither hold up the event loop nor each other's peers.

A handshake costs a millisecond of the processor at the moment at which its bytes are read. Five
hundred that are ready at once would run one after the other with nothing between them. So each
read of a connection that has made none yet waits for its turn: one for each round of the event
loop, peers one after the other, so who opens many waits for them and nobody else does.
"""

from collections import deque
from collections.abc import Hashable
from contextlib import suppress

import trio


class Turns:
    """Lets one task go on in each round of the event loop."""

    __slots__ = ("_busy", "_queues")

    def __init__(self) -> None:
        self._busy = False
        self._queues: dict[Hashable, deque[trio.Event]] = {}

    async def wait(self, peer: Hashable) -> None:
        """Wait for a turn of this peer; cancelled, it has had none."""
        if self._busy:
            await self._queue(peer)
        self._busy = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._call_next()

    async def _queue(self, peer: Hashable) -> None:
        called = trio.Event()
        self._queues.setdefault(peer, deque()).append(called)
        try:
            await called.wait()
        except trio.Cancelled:
            with suppress(ValueError):
                self._queues[peer].remove(called)
            if not self._queues[peer]:
                del self._queues[peer]
            raise

    def _call_next(self) -> None:
        peer = next(iter(self._queues), None)
        self._busy = peer is not None
        if peer is None:
            return
        queue = self._queues.pop(peer)
        queue.popleft().set()
        if queue:
            self._queues[peer] = queue  # behind the other peers


class HandshakeTransport(trio.abc.Stream):
    """A connection below TLS, whose reads wait for turns until its handshake is `over`."""

    def __init__(self, transport_stream: trio.SocketStream, turns: Turns, peer: Hashable) -> None:
        self.transport_stream = transport_stream
        self.over = False
        self._turns = turns
        self._peer = peer

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """At least one byte, or none at the end."""
        data = await self.transport_stream.receive_some(max_bytes)
        if not self.over:
            await self._turns.wait(self._peer)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        await self.transport_stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the connection takes more."""
        await self.transport_stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection."""
        await self.transport_stream.aclose()
