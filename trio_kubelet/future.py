"""A value that one task will have and others wait for."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Future(Generic[T]):
    """What some work will come to: a value, or an error that everyone who waits is told.

    Cancelled work settles nothing: whoever waits for it has to be cancelled with it.
    """

    __slots__ = ("_error", "_settled", "_value")

    def __init__(self) -> None:
        self._settled = trio.Event()
        self._value: T
        self._error: Exception | None = None

    @classmethod
    def resolved(cls, value: T) -> "Future[T]":
        """Return one that has its value already."""
        future = cls()
        future._value = value
        future._settled.set()
        return future

    @property
    def is_settled(self) -> bool:
        """Whether there is a value or an error: nobody has to wait any more."""
        return self._settled.is_set()

    async def run(self, work: Callable[[], Awaitable[T]]) -> None:
        """Do the work. Its error is not raised here, but to those who wait."""
        try:
            self._value = await work()
        except Exception as error:
            self._error = error
        self._settled.set()

    async def wait(self) -> None:
        """Wait until there is a value or an error; raises neither."""
        await self._settled.wait()

    async def result(self) -> T:
        """Wait for the value; raises what the work has raised."""
        await self._settled.wait()
        if self._error is not None:
            raise self._error
        return self._value
