"""Whether pods are being started or stopped: what nobody waits for is put off until it is quiet.

Users wait for pods to start and to go. The removal of what dead pods leave costs as much again and
is waited for by nobody, so it takes the time in which nothing is started or stopped; events that
are no warnings wait for such a time, too, but no more than a second. A start counts for as long as
it takes; a stop counts only at its begin, for a process may take an hour's grace.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

STOP_COUNTS_SECONDS = 10.0
"""How long a stop that goes on keeps the node from being quiet."""


class Activity:
    """Is told of starts and stops; tells when there are none. Only `wait_idle` waits."""

    def __init__(self) -> None:
        self._starts = 0
        self._stops: dict[object, float] = {}
        self._ended_at = -math.inf
        self._changed = trio.Event()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While this is held something is being started."""
        self._starts += 1
        self._tell()
        try:
            yield
        finally:
            self._starts -= 1
            self._end()

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """While this is held a pod is being stopped, or what it held is given back."""
        stop = object()
        self._stops[stop] = trio.current_time() + STOP_COUNTS_SECONDS
        self._tell()
        try:
            yield
        finally:
            del self._stops[stop]
            self._end()

    async def wait_idle(self, seconds: float) -> None:
        """Return when nothing has been started or stopped for so long; at once if it is so."""
        await trio.lowlevel.checkpoint()
        while (quiet_at := self._quiet_at(seconds)) > trio.current_time():
            with trio.move_on_at(quiet_at):
                await self._changed.wait()

    def _quiet_at(self, seconds: float) -> float:
        """When it will have been idle for so long, by trio's clock, if nothing happens."""
        if self._starts:
            return math.inf
        return max(self._ended_at + seconds, *self._stops.values(), -math.inf)

    def _end(self) -> None:
        self._ended_at = trio.current_time()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
