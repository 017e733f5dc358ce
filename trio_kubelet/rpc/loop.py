"""The one asyncio loop of the process, run by trio; nothing outside this package knows of it.

grpclib speaks asyncio. `open_rpc_loop()` starts a loop under trio-asyncio, near the root of the
nursery tree, so that calls which are shielded from a cancellation still end when the agent stops.
Channels and servers find the loop of their surroundings by a context variable. A fault in one of
the loop's callbacks is logged: trio-asyncio alone would end the loop, and every call, for it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, final

import structlog
import trio
import trio_asyncio

from trio_kubelet.rpc.errors import Code, RpcError
from trio_kubelet.rpc.frames import FrameBudget

T = TypeVar("T")
log = structlog.get_logger()


class _Closable(Protocol):
    def close(self) -> None: ...


@final
class RpcLoop:
    """A running loop: runs asyncio coroutines for trio tasks, closes what is open at its end."""

    def __init__(self, loop: trio_asyncio.TrioEventLoop) -> None:
        self.asyncio_loop = loop
        self.frames = FrameBudget()
        """For the frames of all peers that are not trusted."""
        self.decoding = trio.CapacityLimiter(1)
        """For the messages of those peers that are not small."""
        self.look_ups = trio.CapacityLimiter(1)
        """For threads that look names up, and may hang in it after nobody waits for them."""
        self._open: dict[_Closable, None] = {}  # closed in the order in which they were opened

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run an asyncio coroutine and wait for its end, whatever trio task asks.

        Cancelling the caller cancels the coroutine and waits until it has unwound. Raises
        RpcError(UNAVAILABLE) when the loop ends before the coroutine.
        """
        try:
            result: T = await self.asyncio_loop.run_aio_coroutine(coroutine)
        except asyncio.CancelledError as error:
            raise RpcError(Code.UNAVAILABLE, "the rpc loop was closed") from error
        return result

    def opened(self, connection: _Closable) -> None:
        """Close this when the loop ends, unless it is closed before."""
        self._open[connection] = None

    def closed(self, connection: _Closable) -> None:
        self._open.pop(connection, None)

    def _close_all(self) -> None:
        for connection in tuple(self._open):
            connection.close()


_current: ContextVar[RpcLoop] = ContextVar("rpc_loop")


def current_rpc_loop() -> RpcLoop:
    """Find the loop of the surrounding `open_rpc_loop()`; raises RuntimeError without one."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("this needs to run inside `async with open_rpc_loop()`") from None


@asynccontextmanager
async def open_rpc_loop() -> AsyncIterator[RpcLoop]:
    """Run the loop while the body runs; at its end, open channels are closed.

    Errors of the body pass as they are, not in a group. Cancelling stops the loop after the
    body, its shielded parts included, has ended.
    """
    failure: Exception | None = None
    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(_log_fault)
        rpc_loop = RpcLoop(loop)
        token = _current.set(rpc_loop)
        try:
            yield rpc_loop
        except Exception as error:
            failure = error
        finally:
            _current.reset(token)
            rpc_loop._close_all()
    if failure is not None:
        raise failure


def _log_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    log.error(
        "rpc event loop failed",
        what=context.get("message", ""),
        exc_info=context.get("exception"),
    )
