"""Who uses the processor: the stacks that are seen after each 10 ms of the process's time on it.

A signal of the kernel's asks for each sample, and the main thread takes it between two of its
instructions. A thread that samples beside the main one would see it only where it lets go of the
interpreter's lock, which is where it waits: a busy event loop would look idle.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from attrs import define, field

from trio_kubelet.debugging.stacks import Stack, stack_of

SAMPLE_SECONDS = 0.01


@define
class ProcessorUse:
    """How often a stack was seen to have used the processor, and for how long."""

    samples: int = 0
    nanoseconds: int = 0


Samples = Mapping[Stack, ProcessorUse]


@contextmanager
def sampled_processor() -> Iterator[Samples]:
    """What uses the processor while the block runs, filled as it is seen. In the main thread only.

    Only one block at a time; the timer is the process's.
    """
    sampler = _Sampler()
    signal.signal(signal.SIGPROF, sampler.take)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        yield sampler.used
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # A signal may be on its way, and its default is the process's end.
        signal.signal(signal.SIGPROF, _take_none)


def _used_by_threads() -> Mapping[int, int]:
    """How many nanoseconds each thread has used the processor, by the thread's identity."""
    used_ns = {}
    for thread in threading.enumerate():
        if thread.ident is not None and thread.native_id is not None:
            with suppress(OSError):  # It has ended.
                used_ns[thread.ident] = time.clock_gettime_ns(_clock_of(thread.native_id))
    return used_ns


def _clock_of(native_id: int) -> int:
    """The clock of a thread's time on the processor.

    Its number is a part of Linux's interface (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED). glibc
    gives the same, but reads a thread's memory for it, and a thread may have ended.
    """
    return ~native_id << 3 | 6


@define
class _Sampler:
    used: dict[Stack, ProcessorUse] = field(factory=dict)
    _seen_ns: Mapping[int, int] = field(factory=_used_by_threads)
    _is_taking: bool = False

    def take(self, _signal: int, interrupted: FrameType | None) -> None:
        """Take a sample, unless one is being taken: the next one has what is used meanwhile."""
        if self._is_taking:
            return
        self._is_taking = True
        try:
            self._take(interrupted)
        finally:
            self._is_taking = False

    def _take(self, interrupted: FrameType | None) -> None:
        """Add to each thread's stack what the thread has used since the last sample."""
        seen_ns = _used_by_threads()
        frames: dict[int, FrameType | None] = {**sys._current_frames()}
        frames[threading.get_ident()] = interrupted
        for ident, now_ns in seen_ns.items():
            before_ns = self._seen_ns.get(ident, 0)
            # Another thread may have got the identity of one that has ended.
            used_ns = now_ns - before_ns if now_ns >= before_ns else now_ns
            if used_ns and ident in frames:
                use = self.used.setdefault(stack_of(frames[ident]), ProcessorUse())
                use.samples += 1
                use.nanoseconds += used_ns
        self._seen_ns = seen_ns


def _take_none(_signal: int, _interrupted: FrameType | None) -> None:
    """Do nothing, unlike the signal's default. Programs that are started get the default back."""
