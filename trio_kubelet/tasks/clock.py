"""The time of day, as a value that tests can replace.

Durations and deadlines use `trio.current_time()`. This clock is for what leaves the process:
timestamps in statuses, events, annotations and the journal. Pure functions take `now` as an
argument and never ask.
"""

import time
from typing import Protocol


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
