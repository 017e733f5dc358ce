"""The users of the processor: the stacks seen after each 10 ms of the process's time on it.

A signal of the kernel's asks for each sample, and the main thread takes it between two of its
instructions. A thread that samples beside the main one would see it only where it lets go of the
interpreter's lock, which is where it waits: a busy event loop would look idle.

Samples are written in the form that `go tool pprof` and its like read (profile.proto, packed).
Messages and fields are those of github.com/google/pprof/proto/profile.proto: Profile has
sample_type 1, sample 2, location 4, function 5, string_table 6, duration_nanos 10, period_type 11
and period 12.
"""

import gc
import gzip
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

import trio
from attrs import define, field, frozen
from betterproto import encode_varint

INDENT = "  "


@frozen
class Line:
    """A line of the source that is on a stack."""

    function: str
    file: str
    number: int


Stack = tuple[Line, ...]
"""The calls under way, the innermost first."""


def stack_of(frame: FrameType | None) -> Stack:
    """The stack that ends with a frame."""
    lines = []
    while frame is not None:
        code = frame.f_code
        lines.append(Line(code.co_qualname, code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


@frozen(order=True)
class ObjectCount:
    """The objects of one type that are collected; sizes are without what they refer to."""

    size_bytes: int
    count: int
    kind: str


def count_objects() -> list[ObjectCount]:
    """The objects of the process by type, the largest sums first. Blocks, for a second perhaps.

    Those of the imports, which `gc` has set aside (cli/cycles.py), are not counted.
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = f"{type(each).__module__}.{type(each).__qualname__}"
        counts[kind] += 1
        sizes[kind] += sys.getsizeof(each, 0)
    found = (ObjectCount(sizes[kind], count, kind) for kind, count in counts.items())
    return sorted(found, reverse=True)


def thread_lines() -> Iterator[str]:
    """The threads of the process, each with its stack."""
    names = {each.ident: each.name for each in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)}"
        for line in reversed(stack_of(frame)):
            yield f"{INDENT}{line.function} at {line.file}:{line.number}"
        yield ""


def task_lines(*, stacks: bool) -> Iterator[str]:
    """The tree of tasks, each below the task whose nursery it is in; with where each of them is."""
    root = trio.lowlevel.current_root_task()
    if root is not None:
        yield from _task(root, 0, stacks)


def _task(task: trio.lowlevel.Task, depth: int, stacks: bool) -> Iterator[str]:
    yield f"{INDENT * depth}{task.name}"
    if stacks:
        for frame, number in task.iter_await_frames():
            code = frame.f_code
            yield f"{INDENT * (depth + 2)}at {code.co_filename}:{number} {code.co_qualname}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _task(child, depth + 1, stacks)


SAMPLE_SECONDS = 0.01


@define
class ProcessorUse:
    """The times that a stack was seen to have used the processor, and their sum."""

    samples: int = 0
    nanoseconds: int = 0


Samples = Mapping[Stack, ProcessorUse]


@contextmanager
def sampled_processor() -> Iterator[Samples]:
    """The use of the processor while the block runs, filled as it is seen. In the main thread only.

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
    """The nanoseconds that each thread has used the processor, by the thread's identity."""
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


_PERIOD_NS = round(SAMPLE_SECONDS * 1e9)


@define
class _Table:
    """Numbers for values, from a first one on, in the order in which they are asked for."""

    first: int
    numbers: dict[object, int] = field(factory=dict)

    def number(self, value: object) -> int:
        return self.numbers.setdefault(value, self.first + len(self.numbers))


def packed_profile(samples: Samples, seconds: float) -> bytes:
    """A profile of how often each stack was seen, and for how long it used the processor."""
    strings, functions, lines = _Table(0), _Table(1), _Table(1)
    strings.number("")
    parts = [
        _message(1, _value_type(strings, "samples", "count")),
        _message(1, _value_type(strings, "cpu", "nanoseconds")),
    ]
    for stack, use in samples.items():
        numbers = b"".join(encode_varint(lines.number(line)) for line in stack)
        values = encode_varint(use.samples) + encode_varint(use.nanoseconds)
        parts.append(_message(2, _message(1, numbers) + _message(2, values)))
    for line, number in lines.numbers.items():
        assert isinstance(line, Line)
        function = functions.number((line.function, line.file))
        place = _integer(1, function) + _integer(2, line.number)
        parts.append(_message(4, _integer(1, number) + _message(4, place)))
    for (name, file), number in _pairs(functions.numbers.items()):
        shown, source = strings.number(name), strings.number(file)
        parts.append(_message(5, _integer(1, number) + _integer(2, shown) + _integer(4, source)))
    period = _value_type(strings, "cpu", "nanoseconds")
    texts = [_message(6, str(text).encode(errors="replace")) for text in strings.numbers]
    rest = _integer(10, round(seconds * 1e9)) + _message(11, period) + _integer(12, _PERIOD_NS)
    return gzip.compress(b"".join((*parts, *texts)) + rest)


def _pairs(items: Iterable[tuple[object, int]]) -> Iterable[tuple[tuple[str, str], int]]:
    for key, number in items:
        assert isinstance(key, tuple)
        yield key, number


def _value_type(strings: _Table, kind: str, unit: str) -> bytes:
    return _integer(1, strings.number(kind)) + _integer(2, strings.number(unit))


def _message(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _integer(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)
