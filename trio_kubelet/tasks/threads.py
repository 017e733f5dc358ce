"""Blocking work in threads, also when the machine has no thread left for a while.

A container of somebody's may use up the process ids of the node. Work that needs a thread then
waits for one: what would end instead is a task that follows a file for as long as the agent lives,
and with it a port, or the pods.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, cast

import structlog
import trio

from state_machines.backoff import BackoffPolicy
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("threads")

T = TypeVar("T")

RETRY = BackoffPolicy(initial_seconds=0.1, cap_seconds=5.0)
_NO_THREAD = "can't start new thread"


class NoThreadError(OSError):
    """The machine has no thread left."""


@contextmanager
def thread_wanted() -> Iterator[None]:
    """Raise NoThreadError where trio cannot start a thread in the block.

    It starts one for each program that it runs and for each name that it looks up.
    """
    try:
        yield
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        raise NoThreadError(_NO_THREAD) from error


async def run_in_thread_now(
    work: Callable[..., T],
    *args: object,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """As `trio.to_thread.run_sync`; raises NoThreadError where no thread can be started.

    An error of the work is handed over as a value: trio's frame keeps one that is raised in the
    thread, so the two are a circle, with all that the work had.
    """
    raised: list[Exception] = []
    attempt = partial(_attempt, raised, work, *args)
    with thread_wanted():
        done = await trio.to_thread.run_sync(
            attempt, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )
    if raised:
        raise raised.pop()
    return cast("T", done)


def _attempt(raised: list[Exception], work: Callable[..., T], *args: object) -> T | None:
    """Do the work; what it raises is put into the list, without this frame, which has the list."""
    try:
        return work(*args)
    except Exception as error:
        own_frame = error.__traceback__
        raised.append(error.with_traceback(own_frame.tb_next if own_frame else None))
        del own_frame
        return None


async def run_in_thread(
    work: Callable[..., T],
    *args: object,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """As `trio.to_thread.run_sync`; where no thread can be started it waits until one can.

    Cancelled while it waits, nothing was done.
    """
    retries = Retries(RETRY)
    while True:
        try:
            return await run_in_thread_now(
                work, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
            )
        except NoThreadError:
            retries.warn(log, "no thread can be started, waiting")
            await retries.wait()
