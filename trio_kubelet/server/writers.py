"""The threads in which long answers are written, and answers that requests share.

Text is written by the interpreter, of which each thread that writes takes its part from the event
loop, and so from everybody. So there are two such threads for all ports: paths take turns, and in
them the peers that ask. Many who scrape one path at the same time have one answer written for them
all, of figures that were gathered after they had asked.
"""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial

import trio

from trio_kubelet.server.messages import Peer, Response, TcpPeer
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.tasks.future import Future

WRITERS = 2
WRITERS_OF_PATH = 1

Write = Callable[[], Response]
"""Writes an answer out of what was gathered. Blocks."""
Gather = Callable[[], Awaitable[Write]]
"""Gathers what an answer tells, as it is now."""


class AnswerWriters:
    """Owner of the threads, and of the answers that are being written for several requests."""

    def __init__(self) -> None:
        self._threads = FairLimiter(WRITERS, WRITERS_OF_PATH)
        self._tasks = BackgroundTasks()
        self._under_way: dict[tuple[str, Hashable], Future[Response]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is asked for until cancelled; requests that come before wait."""
        await self._tasks.run(task_status=task_status)

    def threads(self, path: str, peer: Peer | None = None) -> Share:
        """The share of a path in the threads, and of a peer in that; None for all that ask."""
        if peer is None:
            return self._threads.share(path)
        return self._threads.share(path, peer.host if isinstance(peer, TcpPeer) else str(peer.uid))

    async def answer(self, path: str, gather: Gather, variant: Hashable = None) -> Response:
        """The answer at a path, gathered after this call; requests for the same variant share it.

        One that is under way is waited for, and the next one is of all who have asked meanwhile.
        Raises what gathering and writing raise. No request that is cancelled takes it from others.
        """
        key = path, variant
        if (former := self._under_way.get(key)) is not None:
            await former.wait()
        if (future := self._under_way.get(key)) is None:
            future = self._under_way[key] = Future()
            self._tasks.start(partial(self._make, key, future, gather))
        return await future.result()

    async def _make(
        self, key: tuple[str, Hashable], future: Future[Response], gather: Gather
    ) -> None:
        async def made() -> Response:
            return await self.threads(key[0]).run_sync(await gather())

        try:
            await future.run(made)
        finally:
            del self._under_way[key]
