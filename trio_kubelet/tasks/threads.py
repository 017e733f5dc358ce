"""Blocking work in threads, also when the machine has no thread left for a while.

A container of somebody's may use up the process ids of the node. Work that needs a thread then
waits for one: what would end instead is a task that follows a file for as long as the agent lives,
and with it a port, or the pods.
"""

from collections.abc import Callable
from typing import TypeVar

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


async def run_in_thread_now(
    work: Callable[..., T],
    *args: object,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """As `trio.to_thread.run_sync`; raises NoThreadError where no thread can be started."""
    try:
        return await trio.to_thread.run_sync(
            work, *args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        raise NoThreadError(_NO_THREAD) from error


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
