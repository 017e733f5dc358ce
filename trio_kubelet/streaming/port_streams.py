"""The connections to ports of pods that clients have: so many of a namespace, and no more.

A runtime keeps a thread and four descriptors for each, and has as many as clients open streams.
Nobody but this node bounds them: without descriptors it starts nothing and runs no probe, of no
pod, and a program in Go ends at its 10,000th thread. So the streams of all clients are counted, by
the frames of SPDY that pass. Who opens one too many loses his connection: the heads of later
streams cannot be read without those before.

A stream is over when the runtime ends it. One that the client gives up before counts on: for the
time in which the runtime may still try to reach the port, or, if the port has answered in it, for
that in which the runtime lets go of it. `kubectl` gives up each stream that it has read to its end.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

import structlog
import trio
from attrs import define, field

from trio_kubelet.server.connections import Place
from trio_kubelet.server.messages import RequestError
from trio_kubelet.streaming.spdy import StreamChange, StreamChanges

log = structlog.get_logger("server")

TOO_MANY = "too many connections to ports of pods"

STREAMS_OF_A_PORT = 2
"""Each connection to a port has one for data and one for its error."""
MOST_STREAMS = 4096
MOST_OF_A_NAMESPACE = 1024
GIVEN_UP_SECONDS = 135.0
"""Linux tries for 127 s to connect with a port that does not answer."""
ANSWERED_SECONDS = 2.0
"""A runtime waits for a second until it drops what a port goes on to send."""


@define
class StreamCounts:
    """The streams that the runtime has open for clients, by namespace; `now` is in seconds."""

    _open: Counter[str] = field(factory=Counter)
    _given_up: list[tuple[float, str, int]] = field(factory=list)
    """A heap: when how many that were given up count no more."""

    def take(self, namespace: str, count: int, now: float) -> bool:
        """Count more streams; False, and none is counted, if there are too many."""
        while self._given_up and self._given_up[0][0] <= now:
            _, of, over = heappop(self._given_up)
            self.give_back(of, over)
        most, all_ = self._open[namespace] + count, self._open.total() + count
        if most > MOST_OF_A_NAMESPACE or all_ > MOST_STREAMS:
            return False
        self._open[namespace] += count
        return True

    def give_back(self, namespace: str, count: int = 1) -> None:
        """Count streams no more, which the runtime has ended."""
        self._open[namespace] -= count
        if not self._open[namespace]:
            del self._open[namespace]

    @contextmanager
    def held(self, namespace: str, count: int) -> Iterator[None]:
        """Count streams until the end of the block. Raises RequestError (429)."""
        if not self.take(namespace, count, trio.current_time()):
            raise RequestError(429, f"{TOO_MANY}; try again later")
        try:
            yield
        finally:
            self.give_up(namespace, count, trio.current_time() + GIVEN_UP_SECONDS)

    def give_up(self, namespace: str, count: int, until: float) -> None:
        """Count streams no more from a time on: the runtime may have them open as long."""
        if count:
            heappush(self._given_up, (until, namespace, count))


class CountedStreams(trio.abc.Stream):
    """A client that sends SPDY, whose streams are counted for the owner of its place."""

    def __init__(self, client: trio.abc.Stream, place: Place, counts: StreamCounts) -> None:
        self._client = client
        self._place = place
        self._namespace = place.owner
        self._counts = counts
        self._open = set[int]()
        self._answered = set[int]()
        """Of those, the ones in which the port has sent something."""
        self._of_client, self._of_runtime = StreamChanges(), StreamChanges()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The next bytes. Raises trio.BrokenResourceError for one stream too many."""
        data = bytes(await self._client.receive_some(max_bytes))
        self._of_client.feed(data)
        while self._of_client.has_more:
            for change, stream in self._of_client.changes():
                if change is StreamChange.OPENED:
                    self._take(stream)
                elif change is StreamChange.RESET and stream in self._open:
                    self._give_up(stream)
            if self._of_client.has_more:
                await self._place.turn()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything."""
        self._of_runtime.feed(bytes(data))
        while self._of_runtime.has_more:
            for change, stream in self._of_runtime.changes():
                if stream not in self._open or change is StreamChange.OPENED:
                    continue
                if change is StreamChange.SENT:
                    self._answered.add(stream)
                else:
                    self._open.discard(stream)
                    self._answered.discard(stream)
                    self._counts.give_back(self._namespace)
            if self._of_runtime.has_more:
                await self._place.turn()
        await self._client.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the connection takes more."""
        await self._client.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Give up the streams that are open, and close the client."""
        for stream in tuple(self._open):
            self._give_up(stream)
        await self._client.aclose()

    def _take(self, stream: int) -> None:
        """Count a stream that is opened. Raises trio.BrokenResourceError."""
        if stream in self._open:
            raise trio.BrokenResourceError("a stream is opened twice")
        if not self._counts.take(self._namespace, 1, trio.current_time()):
            log.warning(TOO_MANY, namespace=self._namespace)
            raise trio.BrokenResourceError(TOO_MANY)
        self._open.add(stream)

    def _give_up(self, stream: int) -> None:
        seconds = ANSWERED_SECONDS if stream in self._answered else GIVEN_UP_SECONDS
        self._open.discard(stream)
        self._answered.discard(stream)
        self._counts.give_up(self._namespace, 1, trio.current_time() + seconds)
