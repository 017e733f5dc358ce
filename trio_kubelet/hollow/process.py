"""The first process of a container: a task that follows its behaviour until it ends or is ended.

A signal moves the process's end: TERM to `obeys_term` seconds from now, KILL to now; the earliest
end counts. Whoever waits for the end waits for the container's `stopped` event, which its owner
(`containers.py`) sets after it has written the end down.
"""

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator

import trio
from attrs import frozen

from trio_kubelet.hollow.behaviour import KILLED, Behaviour, LogLine, natural_end

WriteLine = Callable[[LogLine], Awaitable[None]]


@frozen
class ProcessExit:
    """The end of a process; `by_itself` is false when a signal did it."""

    exit_code: int
    reason: str = ""
    by_itself: bool = False


class Process:
    """One run of a container's first process."""

    __slots__ = ("_behaviour", "_life", "_signalled_end")

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._life = trio.CancelScope()
        self._signalled_end = ProcessExit(KILLED)

    async def run(self, write: WriteLine) -> ProcessExit:
        """Live until the end and tell how it came; cancelling it is a crash of the whole node."""
        start = trio.current_time()
        with self._life:
            for seconds, line in lines_in_order(self._behaviour):
                await trio.sleep_until(start + seconds)
                await write(line)
            await trio.sleep_until(start + natural_end(self._behaviour))
        if self._life.cancelled_caught:
            return self._signalled_end
        if self._behaviour.oom_killed:
            return ProcessExit(KILLED, "OOMKilled", by_itself=True)
        return ProcessExit(self._behaviour.exit_code, by_itself=True)

    def terminate(self) -> None:
        """Send the stop signal, which a process may ignore."""
        if self._behaviour.obeys_term is not None:
            self._end_at(
                trio.current_time() + self._behaviour.obeys_term, self._behaviour.term_exit_code
            )

    def kill(self, reason: str = "") -> None:
        """Send KILL, which no process ignores; `reason` is what the end is put down to."""
        self._end_at(trio.current_time(), KILLED, reason)

    def _end_at(self, deadline: float, exit_code: int, reason: str = "") -> None:
        if deadline < self._life.deadline:
            self._life.deadline = deadline
            self._signalled_end = ProcessExit(exit_code, reason)


def lines_in_order(behaviour: Behaviour) -> Iterator[tuple[float, LogLine]]:
    """The lines that the process prints before its natural end, with seconds since its start."""
    end = natural_end(behaviour)
    streams = (_repetitions(line, place) for place, line in enumerate(behaviour.log_lines))
    for seconds, _, line in heapq.merge(*streams, key=lambda entry: entry[:2]):
        if seconds > end or math.isinf(seconds):
            return
        yield seconds, line


def _repetitions(line: LogLine, place: int) -> Iterator[tuple[float, int, LogLine]]:
    if not line.every_seconds:
        yield line.at_seconds, place, line
        return
    for seconds in itertools.count(line.at_seconds, line.every_seconds):
        yield seconds, place, line
