"""Turns of the event loop in tests: one that takes long fails the test, as it would stop a node.

Each `trio.run` of a test is metered as a node's run is. Work that only a test does, such as making
what an attacker sends, is excused by `making_test_data`, and so is the garbage collector, which
goes through all that the tests before have left.

CPU time is no measure of work where another process shares the core's caches and units: the same
loop then takes twice as long. So a turn that seems long is compared with a known piece of work.
"""

import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from typing import Any, TypeVar

import trio

from trio_kubelet.debugging import LongTurn, LoopMeter

T = TypeVar("T")

IS_USER_MODE = "User Mode" in Path("/proc/cpuinfo").read_text()
"""A machine of user-mode Linux, which counts the time that its host gave to others as its own."""

LIMIT_SECONDS = float("inf") if IS_USER_MODE else 0.1
"""CPU time on an idle machine. A node's own limit is half of it."""

KNOWN_WORK = 30_000
"""Entries that are put into a dictionary."""
KNOWN_WORK_SECONDS = 0.0023
"""What that takes on an idle machine of those that LIMIT_SECONDS is for."""
SAMPLES = 10


def is_too_long(cpu_seconds: float) -> bool:
    """Whether a turn that has just been was over the limit, as slow as this machine is now."""
    return cpu_seconds > LIMIT_SECONDS and cpu_seconds > LIMIT_SECONDS * _slowness()


def _slowness() -> float:
    """How many times as long as on an idle machine work takes: at least 1, the worst of samples."""
    return max(1.0, *(_known_work() / KNOWN_WORK_SECONDS for _ in range(SAMPLES)))


def _known_work() -> float:
    began = thread_time()
    kept = {str(number): number for number in range(KNOWN_WORK)}
    assert len(kept) == KNOWN_WORK
    return thread_time() - began


class TurnTooLongError(AssertionError):
    """A task held the event loop of a test."""


class _Excused:
    """The CPU time of the thread that is not the agent's, so far."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began: float | None = None
        self._collection_began = 0.0

    @property
    def seconds(self) -> float:
        """All of it, with what a block that has not ended has used so far."""
        return self._seconds + (thread_time() - self._began if self._began is not None else 0.0)

    @contextmanager
    def excuse(self) -> Iterator[None]:
        """Excuse what is computed until the end of the block, by any task. Blocks do not nest."""
        self._began = thread_time()
        try:
            yield
        finally:
            self._seconds, self._began = self.seconds, None

    def collected(self, phase: str, _info: object) -> None:
        """The garbage collector begins, or is through."""
        if phase == "start":
            self._collection_began = thread_time()
        elif self._began is None:
            self._seconds += thread_time() - self._collection_began


_excused = _Excused()
run_unmetered = trio.run
"""For the loop of a stand-in for others, in a thread of its own."""

making_test_data = _excused.excuse


def meter_all_runs() -> None:
    """Let `trio.run` be `run`, for the whole process."""
    gc.callbacks.append(_excused.collected)
    trio.run = run


def run(
    async_fn: Callable[..., Awaitable[T]],
    *args: object,
    instruments: Sequence[trio.abc.Instrument] = (),
    **options: Any,
) -> T:
    """As `trio.run`; raises TurnTooLongError if a turn was too long."""
    meter = LoopMeter()
    too_long: list[LongTurn] = []
    excused_before = _excused.seconds

    def judge(turn: LongTurn) -> None:
        nonlocal excused_before
        excused, excused_before = _excused.seconds - excused_before, _excused.seconds
        if is_too_long(turn.cpu_seconds - excused):
            too_long.append(turn)

    meter.on_long_turn.add(judge)
    result = run_unmetered(async_fn, *args, instruments=[*instruments, meter], **options)
    if too_long:
        raise TurnTooLongError(
            "; ".join(
                f"{turn.task} {turn.pod} held the event loop for {turn.cpu_seconds:.3f} s of CPU"
                for turn in too_long
            )
        )
    return result
