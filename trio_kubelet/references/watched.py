"""Objects kept up to date by a watch of each: the strategy Watch.

An object that a pod begins to use is asked for at once, and then followed by a watch of just
that object: the Node authorizer allows no more, and nothing else is of interest. Its pods are
told when its content changes. An immutable object is not followed any more once it was seen.
What nearly every pod uses is followed on for a while after the last one: pods of a job come one
after another, and each would ask for it, and open a watch, anew. What a namespace has no room for
is neither kept nor followed; there may be room later. What changes too often is not followed for
a minute.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Generic

import structlog
import trio
from attrs import define, evolve, field

from trio_kubelet.k8s.client import (
    Api,
    ApiError,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    Selection,
    WatchEvent,
    reflect,
)
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.references.cached import ANSWER_SECONDS, LAG_SECONDS, RETRY, is_lag
from trio_kubelet.references.kept_bytes import ChangeRates, KeptBytes, no_room
from trio_kubelet.references.object_references import (
    Key,
    ObjectError,
    ObjectNotFoundError,
    T,
    not_registered,
)
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.retries import Retries, stretched

log = structlog.get_logger("references")

FOLLOWED_ON_SECONDS = 60.0
"""The time that some objects are followed after the last pod that used them."""

MOST_WATCHES = 1000
MOST_WATCHES_OF_NAMESPACE = 250
"""Each watch is a connection of its own, with a local port and some 50 KiB."""

ASK_AGAIN_SECONDS = 60.0
"""The interval at which an object is asked for that cannot be watched, as there are too many."""

_PATIENCE_SECONDS = 1.0
"""The time that one `get` waits for an object that the server has long failed to give."""

_REPAIR_SECONDS = 1.0
"""The least time before an object that a bug ended the watch of is watched again."""


@define(eq=False)
class WatchedObjects(Generic[T]):
    """The objects of one kind. `on_change` is told the UID of each pod that uses what changed.

    `followed_on` are the names of objects that are followed on: what hardly ever changes, and is
    no secret. A pod that begins to use another is given what the server has by then. Of too many
    objects those that came last are asked for again and again instead.
    """

    _api: Api
    _kind: Kind[T]
    _on_change: Callable[[str], None]
    _lookups: FairLimiter
    _followed_on: frozenset[str] = frozenset()
    _entries: "dict[Key, _Entry[T]]" = field(init=False, factory=dict)
    _watches: Counter[str] = field(init=False, factory=Counter)
    """Their number by namespace."""

    _kept: KeptBytes = field(init=False, factory=KeptBytes)
    _rates: ChangeRates = field(init=False, factory=ChangeRates)
    _tasks: BackgroundTasks = field(init=False, factory=BackgroundTasks)

    @property
    def word(self) -> str:
        """The kind as messages have it."""
        return self._kind.kind.lower()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow what is in use, for ever."""
        await self._tasks.run(task_status=task_status)

    def use(self, key: Key, uid: str) -> None:
        """A pod begins to use an object."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, trio.current_time())
            self._tasks.start(partial(self._follow, entry))
        entry.users.add(uid)

    def release(self, key: Key, uid: str) -> None:
        """A pod uses an object no more; after the last one it is forgotten, at once or soon."""
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.users.discard(uid)
        if entry.users:
            return
        if self._is_followed_on(entry):
            self._tasks.start(partial(self._forget_later, entry))
        else:
            self._forget(entry)

    def _is_followed_on(self, entry: "_Entry[T]") -> bool:
        known = entry.object
        return entry.key[1] in self._followed_on and known is not None and not known.immutable

    async def _forget_later(self, entry: "_Entry[T]") -> None:
        entry.unused_since = since = trio.current_time()
        await trio.sleep(FOLLOWED_ON_SECONDS)
        if not entry.users and entry.unused_since == since:
            self._forget(entry)

    def _forget(self, entry: "_Entry[T]") -> None:
        entry.scope.cancel()
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
            self._kept.forget(entry.key)

    async def get(self, key: Key) -> T:
        """Return an object that is in use, as it was last seen; waits for the first answer.

        Raises ObjectNotFoundError, and ObjectError where no answer came within LAG_SECONDS.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise not_registered(key)
        earliest = trio.current_time() + _PATIENCE_SECONDS
        with trio.move_on_at(max(entry.since + LAG_SECONDS, earliest)):
            await entry.answered.wait()
        if not entry.answered.is_set():
            entry.gave_up = True
            raise ObjectError(
                f"failed to sync {self.word} cache: timed out waiting for the condition"
            )
        if entry.is_refused:
            raise no_room(self.word, key)
        if entry.object is None:
            raise ObjectNotFoundError(self.word, key[1])
        return entry.object

    async def _follow(self, entry: "_Entry[T]") -> None:
        namespace, name = entry.key
        retries = Retries(RETRY)
        with entry.scope:
            while True:
                try:
                    await self._look_and_watch(entry)
                except Exception:
                    log.exception(
                        "object watch failed, will retry",
                        kind=self._kind.kind,
                        object=f"{namespace}/{name}",
                    )
                else:
                    return
                await retries.wait(at_least=_REPAIR_SECONDS)

    async def _look_and_watch(self, entry: "_Entry[T]") -> None:
        while True:
            if self._kept.has_room(entry.key):
                await self._look(entry)
            else:
                self._refuse(entry)
            if entry.object is not None and entry.object.immutable:
                return
            if not entry.is_refused and self._may_watch(entry.key[0]):
                await self._watch(entry)
            await trio.sleep(stretched(ASK_AGAIN_SECONDS, RETRY.jitter))

    async def _watch(self, entry: "_Entry[T]") -> None:
        """Follow an object until there is no room for it any more, or it changes too often."""
        namespace, name = entry.key
        self._watches[namespace] += 1
        try:
            followed = _FollowedObject(self, entry)
            selection = Selection(namespace=namespace, fields=f"metadata.name={name}")
            with trio.CancelScope() as entry.watch:
                await reflect(self._api, self._kind, followed.take, selection)
        finally:
            self._watches[namespace] -= 1
            self._watches += Counter()  # without namespaces that have none
            if namespace not in self._watches:
                self._rates.forget(namespace)

    def _may_watch(self, namespace: str) -> bool:
        return (
            self._watches[namespace] < MOST_WATCHES_OF_NAMESPACE
            and self._watches.total() < MOST_WATCHES
        )

    async def _look(self, entry: "_Entry[T]") -> None:
        """Ask until there is an answer, quietly at first."""
        namespace, name = entry.key
        told = False
        retries = Retries(RETRY)
        while True:
            returned = self._api.recovery.next
            try:
                async with self._lookups.share(namespace):
                    found = await self._api.get(
                        self._kind, name, namespace, deadline_seconds=ANSWER_SECONDS
                    )
            except ApiError as error:
                if error.is_not_found:
                    self.store(entry, None)
                    return
                late = trio.current_time() > entry.since + LAG_SECONDS
                if not told and (late or not is_lag(error)):
                    told = True
                    log.warning(
                        "object fetch failed, will retry",
                        kind=self._kind.kind,
                        object=f"{namespace}/{name}",
                        error=str(error),
                    )
            else:
                self.store(entry, found)
                return
            with trio.move_on_after(retries.next_seconds()):
                await returned.wait()

    def store(self, entry: "_Entry[T]", found: T | None) -> None:
        """Keep what is known of an object now, and tell its pods if that is news to them."""
        if found is not None and not self._kept.has_room(entry.key):
            self._refuse(entry)
            return
        is_first = not entry.answered.is_set()
        is_news = entry.gave_up if is_first else not _same_content(entry.object, found)
        is_news = is_news or entry.is_refused
        entry.object, entry.is_refused = found, False
        if found is None:
            self._kept.forget(entry.key)
        else:
            self._kept.keep(entry.key, found)
        entry.answered.set()
        if is_news:
            self._tell(entry)

    def count_change(self, entry: "_Entry[T]") -> None:
        """A watch has shown a version of an object; end it if there are too many."""
        namespace, _ = entry.key
        if not self._rates.take(namespace, self._kept.of(entry.key), trio.current_time()):
            log.info(
                "object changes too often, asking for it each minute",
                kind=self._kind.kind,
                object="/".join(entry.key),
            )
            entry.watch.cancel()

    def _refuse(self, entry: "_Entry[T]") -> None:
        """Keep nothing of an object, and follow it no more, until there may be room again."""
        is_news = entry.object is not None
        entry.object, entry.is_refused = None, True
        self._kept.forget(entry.key)
        entry.watch.cancel()
        entry.answered.set()
        if is_news:
            self._tell(entry)

    def _tell(self, entry: "_Entry[T]") -> None:
        entry.gave_up = False
        for uid in sorted(entry.users):
            self._on_change(uid)


@define(eq=False)
class _Entry(Generic[T]):
    """One object in use: who uses it, since when nobody does, and what is known of it.

    `is_refused`: its namespace has no room for it. `watch` is the scope of its newest watch.
    """

    key: Key
    since: float
    unused_since: float | None = None
    users: set[str] = field(factory=set)
    object: T | None = None
    answered: trio.Event = field(factory=trio.Event)
    gave_up: bool = False
    is_refused: bool = False
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    watch: trio.CancelScope = field(factory=trio.CancelScope)


@define(eq=False)
class _FollowedObject(Generic[T]):
    """The news of one object from one reflection."""

    _objects: WatchedObjects[T]
    _entry: _Entry[T]
    _is_there: bool = False

    async def take(self, event: WatchEvent[T]) -> None:
        if isinstance(event, ObjectChanged):
            self._is_there = True
            self._objects.store(self._entry, event.object)
            self._objects.count_change(self._entry)
            if event.object.immutable:
                self._entry.scope.cancel()
        elif isinstance(event, ObjectRemoved):
            self._is_there = False
            self._objects.store(self._entry, None)
        elif isinstance(event, ListSynced) and not self._is_there:
            # It vanished between the first answer and the list: the reflection never saw it.
            self._objects.store(self._entry, None)


def _same_content(before: T | None, after: T | None) -> bool:
    if before is None or after is None:
        return before is after
    return bool(evolve(before, metadata=after.metadata) == after)
