"""Objects that are asked for when a pod needs them: the strategies Get and Cache.

With Cache an answer serves for some time, but not a pod that begins to use the object: what it
refers to may be newer. While the server gives no answer, the last one serves.

The Node authorizer lets a node see an object once it knows of a pod here that refers to it. It
may learn that a moment later than the node does: a 403 that soon after is nobody's fault.
"""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

import trio
from attrs import define, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.references.kept_bytes import KeptBytes, no_room
from trio_kubelet.references.object_references import (
    Key,
    ObjectError,
    ObjectNotFoundError,
    T,
    not_registered,
)
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.future import Fetches
from trio_kubelet.tasks.retries import Retries

R = TypeVar("R")

LAG_SECONDS = 5.0
"""The time that a refusal right after a pod's arrival is taken for the authorizer's lag."""

ANSWER_SECONDS = 10.0
"""The time for one answer: a pod waits, and the next attempt may find a better connection."""

RETRY = BackoffPolicy(initial_seconds=0.04, cap_seconds=12.0, growth=1.5, jitter=0.5)


async def ask(request: Callable[[], Awaitable[R]]) -> R:
    """Return the answer to a request; one that is refused is repeated for LAG_SECONDS.

    Raises ApiError.
    """
    deadline = trio.current_time() + LAG_SECONDS
    retries = Retries(RETRY)
    while True:
        try:
            return await request()
        except ApiError as error:
            left = deadline - trio.current_time()
            if not is_lag(error) or left <= 0:
                raise
        await trio.sleep(min(retries.next_seconds(), left))


def is_lag(error: ApiError) -> bool:
    """Return whether an error may only say that the server does not know yet of the pod."""
    about_pod = error.is_not_found and error.details.get("kind") == "pods"
    return error.is_forbidden or about_pod


class CachedObjects(Generic[T]):
    """The objects of one kind; an answer serves for `serves_seconds`, 0: for one `get`."""

    def __init__(
        self, api: Api, kind: Kind[T], serves_seconds: float, lookups: FairLimiter
    ) -> None:
        self._api = api
        self._lookups = lookups
        self._kind = kind
        self._serves_seconds = serves_seconds
        self._entries: dict[Key, _Entry[T]] = {}
        self._kept = KeptBytes()
        self._fetches: Fetches[tuple[Key, int], T] = Fetches()

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
        entry.uses += 1
        entry.asked_at = -math.inf

    def release(self, key: Key, uid: str) -> None:
        """A pod uses an object no more; after the last one it is forgotten."""
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.users.discard(uid)
        if not entry.users:
            del self._entries[key]
            self._kept.forget(key)

    async def get(self, key: Key) -> T:
        """Return an object; raises ObjectNotFoundError, or ObjectError with the server's words."""
        entry = self._entries.get(key)
        if entry is None:
            raise not_registered(key)
        age = trio.current_time() - entry.asked_at
        if entry.object is not None and age < self._serves_seconds:
            return entry.object
        # An answer to a question from before the newest pod came may be too old for it.
        return await self._fetches.get((key, entry.uses), partial(self._ask, key, entry))

    async def _ask(self, key: Key, entry: "_Entry[T]") -> T:
        namespace, name = key
        asked_at, uses = trio.current_time(), entry.uses
        if not self._kept.has_room(key):
            raise no_room(self.word, key)
        try:
            async with self._lookups.share(namespace):
                found: T = await ask(
                    lambda: self._api.get(
                        self._kind, name, namespace, deadline_seconds=ANSWER_SECONDS
                    )
                )
        except ApiError as error:
            if error.is_not_found:
                entry.object = None
                self._kept.forget(key)
                raise ObjectNotFoundError(self.word, name) from error
            if entry.object is not None and self._serves_seconds:
                return entry.object
            raise ObjectError(error.message) from error
        if not self._kept.has_room(key):
            raise no_room(self.word, key)
        if entry.uses == uses and self._entries.get(key) is entry:
            entry.object, entry.asked_at = found, asked_at
            self._kept.keep(key, found)
        return found


@define(eq=False)
class _Entry(Generic[T]):
    """One object in use; `uses` is how often a pod has begun to use it."""

    users: set[str] = field(factory=set)
    uses: int = 0
    object: T | None = None
    asked_at: float = -math.inf
