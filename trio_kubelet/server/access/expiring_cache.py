"""A cache of the API server's reviews, each of which holds for its own time.

Several callers that want one key share one fetch. Errors are not cached. The table is bounded:
the entry that was used least recently is evicted first. Values that are true and those that are
not have a table each, so that refusals, which anybody can make, evict no permission.
"""

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Generic, TypeVar, cast

import trio
from attrs import frozen

from trio_kubelet.tasks.future import Fetches

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ENTRIES = 4096


@frozen
class Expiring(Generic[V]):
    """A value, and for how many seconds it holds."""

    value: V
    seconds: float


class ExpiringCache(Generic[K, V]):
    """Values by key."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
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
