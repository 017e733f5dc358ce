"""A value that one task will have and others wait for; fetches that callers share."""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Generic, TypeVar, cast

import trio
from attrs import frozen

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

V = TypeVar("V")

MAX_CACHED = 4096


class Future(Generic[T]):
    """The result of some work: a value, or an error that everyone who waits is told.

    Cancelled work settles nothing: whoever waits for it has to be cancelled with it.
    """

    __slots__ = ("_error", "_settled", "_value", "is_abandoned")

    def __init__(self) -> None:
        self._settled = trio.Event()
        self._value: T
        self._error: Exception | None = None
        self.is_abandoned = False

    @classmethod
    def resolved(cls, value: T) -> "Future[T]":
        """Return one that has its value already."""
        future = cls()
        future._value = value
        future._settled.set()
        return future

    @property
    def is_settled(self) -> bool:
        """True if there is a value or an error: nobody has to wait any more."""
        return self._settled.is_set()

    async def run(self, work: Callable[[], Awaitable[T]]) -> None:
        """Do the work. Its error is not raised here, but to those who wait."""
        try:
            self._value = await work()
        except Exception as error:
            # This frame, which has this future, is no part of the error that the future has.
            own_frame = error.__traceback__
            self._error = error.with_traceback(own_frame.tb_next if own_frame else None)
            del own_frame
        self._settled.set()

    def abandon(self) -> None:
        """Wake those who wait if the work was cancelled: `is_abandoned` tells them."""
        self.is_abandoned = not self.is_settled
        self._settled.set()

    async def wait(self) -> None:
        """Wait until there is a value or an error, or nobody works for one; raises neither."""
        await self._settled.wait()

    async def result(self) -> T:
        """Wait for the value; raises what the work has raised."""
        await self._settled.wait()
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # The error has this frame, and is not to have itself through it.


class Fetches(Generic[K, T]):
    """Fetches that are under way: callers who want the same at the same time share one.

    One of them fetches, in its own task. What came of a fetch is told to those who waited for it,
    and not kept.
    """

    def __init__(self) -> None:
        self._under_way: dict[K, Future[T]] = {}

    async def get(self, key: K, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return what `fetch` returns; raises what that raises.

        If the caller that fetches is cancelled, one of those that wait for it fetches again.
        """
        while (under_way := self._under_way.get(key)) is not None:
            await under_way.wait()
            if not under_way.is_abandoned:
                return await under_way.result()
        future = self._under_way[key] = Future()
        try:
            await future.run(fetch)
        finally:
            del self._under_way[key]
            future.abandon()
        return await future.result()


@frozen
class Expiring(Generic[V]):
    """A value, and for how many seconds it holds."""

    value: V
    seconds: float


class ExpiringCache(Generic[K, V]):
    """Values that were fetched, each of which holds for its own time.

    Callers that want one key share one fetch. Errors are not cached. The table is bounded: the
    entry that was used least recently is evicted first. Values that are true and those that are
    not have a table each, so that refusals, which anybody can cause, evict no permission.
    """

    def __init__(self, max_entries: int = MAX_CACHED) -> None:
        self._max_entries = max_entries
        self._tables: Mapping[bool, OrderedDict[K, tuple[V, float]]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._fetches: Fetches[K, V] = Fetches()

    async def get(self, key: K, fetch: Callable[[], Awaitable[Expiring[V]]]) -> V:
        """The value that holds, or what `fetch` returns; raises what that raises."""
        for entries in self._tables.values():
            value, until = entries.get(key, (None, -math.inf))
            if trio.current_time() < until:
                entries.move_to_end(key)
                return cast("V", value)
        return await self._fetches.get(key, partial(self._fetch, key, fetch))

    async def _fetch(self, key: K, fetch: Callable[[], Awaitable[Expiring[V]]]) -> V:
        result = await fetch()
        entries = self._tables[bool(result.value)]
        entries[key] = result.value, trio.current_time() + result.seconds
        entries.move_to_end(key)
        while len(entries) > self._max_entries:
            entries.popitem(last=False)
        return result.value
