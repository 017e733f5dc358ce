"""Objects that are asked for when a pod needs them: the strategies Get and Cache.

With Cache an answer serves for some time, but not a pod that begins to use the object: what it
refers to may be newer. While the server gives no answer, the last one serves.
"""

import math
from typing import Generic

import trio
from attrs import define, field

from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.references.fetching import ANSWER_SECONDS, ask
from trio_kubelet.references.objects import Key, ObjectError, ObjectNotFoundError, T


class CachedObjects(Generic[T]):
    """The objects of one kind; an answer serves for `serves_seconds`, 0: for one `get`."""

    def __init__(self, api: Api, kind: Kind[T], serves_seconds: float) -> None:
        self._api = api
        self._kind = kind
        self._serves_seconds = serves_seconds
        self._entries: dict[Key, _Entry[T]] = {}

    @property
    def word(self) -> str:
        """The kind as messages have it."""
        return self._kind.kind.lower()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nothing is done in the background."""
        task_status.started()
        await trio.sleep_forever()

    def use(self, key: Key, uid: str) -> None:
        """A pod begins to use an object; the next `get` asks the server."""
        entry = self._entries.setdefault(key, _Entry())
        entry.users.add(uid)
        entry.asked_at = -math.inf

    def release(self, key: Key, uid: str) -> None:
        """A pod uses an object no more; after the last one it is forgotten."""
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.users.discard(uid)
        if not entry.users:
            del self._entries[key]

    async def get(self, key: Key) -> T:
        """Return an object; raises ObjectNotFoundError, or ObjectError with the server's words."""
        entry = self._entries.get(key)
        if entry is None:
            raise ObjectError(f'object "{key[0]}"/"{key[1]}" not registered')
        async with entry.lock:
            age = trio.current_time() - entry.asked_at
            if entry.object is not None and age < self._serves_seconds:
                return entry.object
            return await self._ask(key, entry)

    async def _ask(self, key: Key, entry: "_Entry[T]") -> T:
        namespace, name = key
        asked_at = trio.current_time()
        try:
            found: T = await ask(
                lambda: self._api.get(self._kind, name, namespace, deadline_seconds=ANSWER_SECONDS)
            )
        except ApiError as error:
            if error.is_not_found:
                entry.object = None
                raise ObjectNotFoundError(self.word, name) from error
            if entry.object is not None and self._serves_seconds:
                return entry.object
            raise ObjectError(error.message) from error
        entry.object, entry.asked_at = found, asked_at
        return found


@define(eq=False)
class _Entry(Generic[T]):
    """One object in use."""

    users: set[str] = field(factory=set)
    object: T | None = None
    asked_at: float = -math.inf
    lock: trio.Lock = field(factory=trio.Lock)
