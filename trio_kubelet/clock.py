"""The time of day, as a value that tests can replace.

Durations and deadlines use `trio.current_time()`. This clock is for what leaves the process:
timestamps in statuses, events, annotations and the journal. Pure functions take `now` as an
argument and never ask.
"""

import time
from typing import Protocol

import trio


class Clock(Protocol):
    """Tells the time of day."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        return time.time_ns()


class TrioClock:
    """A time of day derived from trio's clock, so that a mock clock moves both together."""

    __slots__ = ("_epoch_ns",)

    def __init__(self, epoch_ns: int = 1_767_225_600_000_000_000) -> None:
        self._epoch_ns = epoch_ns

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; must be called inside a trio run."""
        return self._epoch_ns + round(trio.current_time() * 1e9)
