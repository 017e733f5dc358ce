"""A value that is worked out for all who ask at the same time, and holds for a while.

The work runs in a task of its owner: a reader that goes away takes nothing from the others. Tasks
may be asked for before the owner runs; they begin with it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

import trio

from trio_kubelet.future import Future

T = TypeVar("T")
Work = Callable[[], Awaitable[object]]


class Tasks:
    """Where the work of one owner runs."""

    __slots__ = ("_asked_for", "_nursery")

    def __init__(self) -> None:
        self._asked_for: list[Work] = []
        self._nursery: trio.Nursery | None = None

    def start(self, work: Work) -> None:
        """Run this beside all else, as soon as tasks can run."""
        if self._nursery is None:
            self._asked_for.append(work)
        else:
            self._nursery.start_soon(work)

    async def run(self) -> None:
        """Run what is asked for until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for work in self._asked_for:
                nursery.start_soon(work)
            self._asked_for.clear()
            await trio.sleep_forever()


class Shared(Generic[T]):
    """One value. Nothing is worked out unless somebody asks."""

    __slots__ = ("_began_at", "_future", "_seconds", "_tasks", "_value", "_work")

    def __init__(self, tasks: Tasks, work: Callable[[], Awaitable[T]], seconds: float) -> None:
        """What the work has come to holds for so long after its begin."""
        self._tasks = tasks
        self._work = work
        self._seconds = seconds
        self._future: Future[T] | None = None
        self._began_at = 0.0
        self._value: T | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether there is a value that holds, or one that is being worked out."""
        if self._future is None:
            return False
        age = trio.current_time() - self._began_at
        return age < self._seconds or not self._future.is_settled

    async def get(self) -> T:
        """The value; raises what the work has raised, which nobody keeps."""
        if self._future is None or not self.is_fresh:
            self._future = Future()
            self._began_at = trio.current_time()
            self._tasks.start(partial(self._future.run, self._work))
        future = self._future
        try:
            value = await future.result()
        except Exception:
            if self._future is future:
                self._future = None
            raise
        if self._future is future:
            self._value = value
        return value

    def expire(self, value: T) -> None:
        """Have this value worked out anew for the next who asks, unless it has been already."""
        if self._value is value:
            self._future = None
            self._value = None
