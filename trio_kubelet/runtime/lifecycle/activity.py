"""The starts and stops of pods: work that nobody waits for is put off until there are none.

Users wait for pods to start and to go. The removal of what dead pods leave costs as much again and
is waited for by nobody, so it takes the time in which nothing is started or stopped; events that
are no warnings wait for such a time, too, but no more than a second. Either counts only at its
begin: a process may take an hour's grace, and a mount may hang.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

COUNTS_SECONDS = 10.0
"""The longest time that a start or a stop under way keeps the node from being quiet."""


class Activity:
    """Is told of starts and stops; tells when there are none. Only `wait_idle` waits."""

    def __init__(self) -> None:
        self._under_way: dict[object, float] = {}
        """Until when each start and stop counts."""
        self._ended_at = -math.inf
        self._changed = trio.Event()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Start or stop something in the block, or give back what a pod held."""
        one = object()
        self._under_way[one] = trio.current_time() + COUNTS_SECONDS
        self._tell()
        try:
            yield
        finally:
            del self._under_way[one]
            self._ended_at = trio.current_time()
            self._tell()

    async def wait_idle(self, seconds: float) -> None:
        """Return when nothing has been started or stopped for so long; at once if it is so."""
        await trio.lowlevel.checkpoint()
        while (quiet_at := self._quiet_at(seconds)) > trio.current_time():
            with trio.move_on_at(quiet_at):
                await self._changed.wait()

    def _quiet_at(self, seconds: float) -> float:
        """The time in trio's clock from which it has been idle for so long, if nothing happens."""
        return max(self._ended_at + seconds, *self._under_way.values(), -math.inf)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
