"""Locks by key: work on one thing at a time, and none of a thing that nobody works on."""

from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio
from attrs import define, field

K = TypeVar("K", bound=Hashable)


@define(eq=False)
class KeyedLocks(Generic[K]):
    """A lock for each key that somebody holds or waits for."""

    _locks: dict[K, trio.Lock] = field(init=False, factory=dict)
    _users: Counter[K] = field(init=False, factory=Counter)

    @asynccontextmanager
    async def held(self, key: K) -> AsyncIterator[None]:
        """Hold the lock of a key in the block. Cancelled while it waits, it holds none."""
        lock = self._locks.setdefault(key, trio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._locks[key], self._users[key]
