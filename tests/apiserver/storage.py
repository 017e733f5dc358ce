"""Objects and their history, as etcd and the watch cache keep them: one counter of versions.

Objects are JSON-like data and never changed in place. Every write is one entry of the history,
which watches read at their own pace and `compact` forgets.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
import trio
from attrs import frozen

from tests.apiserver.answers import expired

Data = Mapping[str, Any]
Resource = tuple[str, str]
"""API group and plural name."""
Key = tuple[str, str]
"""Namespace and name."""

_REMEMBERED = 20_000
"""So many writes are remembered before the older half is forgotten."""

_VERSIONS_AHEAD = 1_000_000
"""How far a restored backup moves the counter, so that no version comes twice."""


@frozen
class Change:
    """One write: what was there before it and after it; None where there was nothing."""

    version: int
    resource: Resource
    before: Data | None
    after: Data | None


@frozen
class Page:
    """What is left of a list that is read in pages: all of one version."""

    version: int
    items: tuple[Data, ...]


class Storage:
    """All objects of all resources."""

    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[Resource, dict[Key, Data]] = {}
        self._history: list[Change] = []
        self._oldest = 1
        self._pages: dict[str, Page] = {}
        self._written: dict[Resource | None, trio.Event] = {}
        self.observers: list[Callable[[Change], None]] = []
        """Are told of each write, in order, before anybody else."""

    def get(self, resource: Resource, key: Key) -> Data | None:
        """Return an object, if it is there."""
        return self._objects.get(resource, {}).get(key)

    def all(self, resource: Resource, namespace: str = "") -> tuple[Data, ...]:
        """Return all objects of a resource, by namespace and name."""
        objects = self._objects.get(resource, {})
        return tuple(
            objects[key] for key in sorted(objects) if not namespace or key[0] == namespace
        )

    def put(self, resource: Resource, data: Data) -> Data:
        """Store a new version of an object, unless nothing changed; returns what is there then."""
        key = key_of(data)
        before = self.get(resource, key)
        if before is not None and without_version(before) == without_version(data):
            return before
        after = with_version(data, self.version + 1)
        self._objects.setdefault(resource, {})[key] = after
        self._wrote(resource, before, after)
        return after

    def remove(self, resource: Resource, key: Key) -> Data:
        """Remove an object; returns its last state, with the version of the removal."""
        before = self._objects[resource].pop(key)
        self._wrote(resource, before, None)
        return with_version(before, self.version)

    def compact(self) -> None:
        """Forget the history: watches and pages of older versions are answered with Expired."""
        self._history.clear()
        self._oldest = self.version
        self._pages.clear()
        self.wake()

    def backup(self) -> dict[Resource, dict[Key, Data]]:
        """Return what `restore` takes."""
        return {resource: dict(objects) for resource, objects in self._objects.items()}

    def restore(self, backup: dict[Resource, dict[Key, Data]]) -> None:
        """Go back to a backup as etcd does it: old objects, but a counter far ahead, no history."""
        self._objects = {resource: dict(objects) for resource, objects in backup.items()}
        self.version += _VERSIONS_AHEAD
        self.compact()

    def since(self, resource: Resource, version: int) -> Iterator[Change]:
        """Return the changes after a version; raises RefusedError for what is forgotten."""
        if version < self._oldest:
            raise expired(f"too old resource version: {version} ({self._oldest})")
        return (
            change
            for change in self._history[self._position(version) :]
            if change.resource == resource
        )

    def keep_page(self, items: tuple[Data, ...], version: int) -> str:
        """Keep the rest of a list; returns the token to fetch it with."""
        token = f"{version}.{len(self._pages) + 1}"
        self._pages[token] = Page(version, items)
        return token

    def page(self, token: str) -> Page:
        """Return the rest of a list; raises RefusedError when it is forgotten."""
        try:
            return self._pages[token]
        except KeyError:
            raise expired("The provided continue parameter is too old") from None

    async def wait(self, resource: Resource | None = None) -> None:
        """Wait for the next write, of a resource or of any, or for what `wake` tells."""
        await self._written.setdefault(resource, trio.Event()).wait()

    def wake(self, *resources: Resource | None) -> None:
        """Wake those who wait for these, or all."""
        for resource in resources or tuple(self._written):
            event = self._written.pop(resource, None)
            if event is not None:
                event.set()

    def _position(self, version: int) -> int:
        """Where in the history the changes after a version begin: entries have no gaps."""
        return max(0, version - self._oldest)

    def _wrote(self, resource: Resource, before: Data | None, after: Data | None) -> None:
        self.version += 1
        change = Change(self.version, resource, before, after)
        self._history.append(change)
        for observer in self.observers:
            observer(change)
        if len(self._history) > _REMEMBERED:
            del self._history[: _REMEMBERED // 2]
            self._oldest = self._history[0].version - 1
        self.wake(resource, None)


def key_of(data: Data) -> Key:
    """Return namespace and name of an object."""
    metadata = data["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def with_version(data: Data, version: int) -> Data:
    """Return the object with another resource version."""
    return {**data, "metadata": {**data["metadata"], "resourceVersion": str(version)}}


def without_version(data: Data) -> bytes:
    """Return what two versions of an object are compared by."""
    metadata = {k: v for k, v in data["metadata"].items() if k != "resourceVersion"}
    return orjson.dumps({**data, "metadata": metadata}, option=orjson.OPT_SORT_KEYS)
