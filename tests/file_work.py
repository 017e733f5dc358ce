"""File work done in place, for tests on a mock clock.

A mock clock that jumps when every task waits takes a task that waits for a thread for one of
them: it jumps while the thread works, and whoever slept past that work wakes before it is done.
`wait_all_tasks_blocked` is mistaken in the same way. So where the clock is a mock,
`trio.to_thread.run_sync` does the work in the calling task; `autojump_clock` and `mock_clock`
see to it (`tests/conftest.py`), and a test that calls `trio.run` itself holds `in_place()`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import patch

import trio

T = TypeVar("T")


@contextmanager
def in_place(takes_seconds: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    """While this is held, what is meant for a thread is done in the calling task.

    Each piece of work takes so many seconds of the run's clock, in which others run. The promises
    of the original about limiters and cancellation are kept: what may not be abandoned is
    finished although its caller was cancelled.
    """

    async def run_sync(
        sync_fn: Callable[..., T],
        *args: object,
        thread_name: str | None = None,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        borrower = object()
        if limiter is not None:
            await limiter.acquire_on_behalf_of(borrower)
        try:
            with trio.CancelScope(shield=not abandon_on_cancel):
                await trio.sleep(takes_seconds())
            return sync_fn(*args)
        finally:
            if limiter is not None:
                limiter.release_on_behalf_of(borrower)

    with patch.object(trio.to_thread, "run_sync", new=run_sync):
        yield
