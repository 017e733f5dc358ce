"""The progress of the sync loop: the health endpoint and systemd's watchdog ask here."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
import trio

from trio_kubelet.tasks.concurrency import run_and_call_if_slow

log = structlog.get_logger("sync")

SLOW_SECONDS = 30.0
"""A round of housekeeping takes some milliseconds; one that takes so long waits for a disk."""


class LoopMonitor:
    """Since when each consumer of the sync loop has been at one message, by trio's clock.

    Only a consumer that works can be stuck. One that waits, for a message or for the runtime, is
    not: a unit that waits for its runtime must not be killed for it. Nor does housekeeping count,
    which waits for disks: a new agent would wait for the same disks, so the log tells of it
    (`logged_if_slow`). A handler that blocks the event loop needs no report: then the watchdog is
    not fed, and no endpoint answers.
    """

    def __init__(self) -> None:
        self._busy_since: dict[str, float] = {}

    @contextmanager
    def busy(self, consumer: str) -> Iterator[None]:
        """Note that a consumer deals with one message until the end of the block."""
        self._busy_since[consumer] = trio.current_time()
        try:
            yield
        finally:
            del self._busy_since[consumer]

    def slowest(self) -> tuple[str, float]:
        """The consumer that has been busy for the longest time, and the seconds; "", 0 if none."""
        if not self._busy_since:
            return "", 0.0
        since, consumer = min((since, consumer) for consumer, since in self._busy_since.items())
        return consumer, trio.current_time() - since

    def seconds_busy(self) -> float:
        """The time that the slowest consumer has been at one message; 0 while all wait."""
        return self.slowest()[1]


async def logged_if_slow(housekeeping: Callable[[], Awaitable[None]]) -> None:
    """Do a round; warn when it takes longer than SLOW_SECONDS, and say so when it is through."""

    def warn() -> None:
        log.warning("housekeeping is taking longer than expected", seconds=round(SLOW_SECONDS))

    began = trio.current_time()
    await run_and_call_if_slow(housekeeping, SLOW_SECONDS, warn)
    if (seconds := trio.current_time() - began) > SLOW_SECONDS:
        log.warning("housekeeping took longer than expected", seconds=round(seconds))
