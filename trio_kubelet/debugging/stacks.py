"""What the process has: the stacks of its threads, its objects, its tasks."""

import gc
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import trio
from attrs import frozen

INDENT = "  "


@frozen
class Line:
    """A line of the source that is on a stack."""

    function: str
    file: str
    number: int


Stack = tuple[Line, ...]
"""What has called what, the innermost first."""


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
    """The objects of the process by type, the largest sums first. Blocks, for a second perhaps."""
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
