"""A value that is worked out for all who ask at the same time, and holds for a while.

The work runs in a task of its owner: a reader that goes away takes nothing from the others.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

import trio

from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.future import Future

T = TypeVar("T")

ANY_AGE = float("-inf")


class SharedValue(Generic[T]):
    """One value. Nothing is worked out unless somebody asks."""

    __slots__ = ("_began_at", "_future", "_seconds", "_tasks", "_value", "_work")

    def __init__(
        self, tasks: BackgroundTasks, work: Callable[[], Awaitable[T]], seconds: float
    ) -> None:
        """Make a value that holds for `seconds` after the begin of its work."""
        self._tasks = tasks
        self._work = work
        self._seconds = seconds
        self._future: Future[T] | None = None
        self._began_at = 0.0
        self._value: T | None = None

    @property
    def is_fresh(self) -> bool:
        """True if there is a value that holds, or one that is being worked out."""
        if self._future is None:
            return False
        age = trio.current_time() - self._began_at
        return age < self._seconds or not self._future.is_settled

    async def get(self, newer_than: float = ANY_AGE) -> T:
        """The value; raises what the work has raised, which nobody keeps.

        Its work began at `newer_than` (trio's clock) or later. Work that began before is waited
        for, so that never two are under way.
        """
        while self._future is not None and self._began_at < newer_than:
            old = self._future
            await old.wait()
            if self._future is old:
                self._future = None
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
