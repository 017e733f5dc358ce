"""What makes a run repeat itself: all chance from one seed, the work of threads done in place.

Trio runs ready tasks in random order; here that order comes from the seed, so every seed is
another interleaving. Threads would end when the machine likes: `trio.to_thread.run_sync` is
replaced for the time of a run by a function that does the work in the calling task, after some
milliseconds of simulated time in which others run. It keeps the promises of the original about
limiters and cancellation. Nothing here depends on the machine's speed, cores or hash seed.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar
from unittest.mock import patch

import structlog
import trio
from trio._core import _run

LONGEST_FILE_WORK_SECONDS = 0.02

T = TypeVar("T")


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """While this is held, `trio.run` with a mock clock always takes the same course."""
    before = random.getstate()
    logging = structlog.get_config()
    with ExitStack() as stack:
        stack.callback(random.setstate, before)
        stack.callback(lambda: structlog.configure(**logging))
        stack.enter_context(patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True))
        stack.enter_context(patch.object(trio.to_thread, "run_sync", new=run_in_place))
        stack.enter_context(patch.object(os, "cpu_count", new=lambda: 2))
        random.seed(seed)
        _run._r.seed(seed)  # not exported; trio hands it to Hypothesis for the same purpose
        yield


async def run_in_place(
    sync_fn: Callable[..., T],
    *args: object,
    thread_name: str | None = None,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Stand in for `trio.to_thread.run_sync`.

    What may not be abandoned is finished although its caller was cancelled, as in a thread.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    borrower = object()
    if limiter is not None:
        await limiter.acquire_on_behalf_of(borrower)
    try:
        with trio.CancelScope(shield=not abandon_on_cancel):
            await trio.sleep(random.uniform(0.0, LONGEST_FILE_WORK_SECONDS))
        return sync_fn(*args)
    finally:
        if limiter is not None:
            limiter.release_on_behalf_of(borrower)
