"""The stream of a watch: what there was, what changed since, bookmarks, and the end."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import orjson
import trio
from attrs import define, field

from tests.apiserver.answers import RefusedError
from tests.apiserver.selectors import Matches
from tests.apiserver.storage import Change, Data, Resource, Storage, with_version
from trio_kubelet.k8s.client.objects import INITIAL_EVENTS_END


@define(eq=False)
class WatchStream(httpx.AsyncByteStream):
    """The body of an answer to a watch; each chunk holds all that happened since the last one.

    `version` is the last one that the client knows, `until` when the server ends the watch.
    `closed` is called when the client goes away.
    """

    storage: Storage
    resource: Resource
    namespace: str
    matches: Matches
    version: int
    until: float
    bookmark_seconds: float
    closed: Callable[["WatchStream"], None]
    _initial: deque[bytes] = field(factory=deque)
    _next_bookmark: float = field(factory=trio.current_time)
    _broken: bool = False
    _ended: bool = False

    def __attrs_post_init__(self) -> None:
        self._next_bookmark += self.bookmark_seconds

    def begin_with(self, objects: tuple[Data, ...], identity: Mapping[str, Any]) -> None:
        """Send these first, and the bookmark that says so; `identity` is apiVersion and kind."""
        self._initial.extend(_frame("ADDED", data) for data in objects)
        self._initial.append(_bookmark(self.version, identity, {INITIAL_EVENTS_END: "true"}))

    def break_off(self) -> None:
        """Break the connection: what was not yet read is lost."""
        self._broken = True
        self.storage.wake(self.resource)

    def end(self) -> None:
        """End the stream in good order, as after `timeoutSeconds`."""
        self._ended = True
        self.storage.wake(self.resource)

    def __aiter__(self) -> "WatchStream":
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            if self._broken:
                raise httpx.ReadError("connection reset by peer")
            if self._initial:
                return self._initial.popleft()
            if self._ended or trio.current_time() >= self.until:
                raise StopAsyncIteration
            chunk = self._news()
            if chunk:
                return chunk
            with trio.move_on_at(min(self.until, self._next_bookmark)):
                await self.storage.wait(self.resource)

    async def aclose(self) -> None:
        """Tell the server that nobody reads any more."""
        self.closed(self)

    def _news(self) -> bytes:
        try:
            changes = tuple(self.storage.since(self.resource, self.version))
        except RefusedError as refusal:
            self._ended = True
            return orjson.dumps({"type": "ERROR", "object": refusal.status}) + b"\n"
        self.version = max(self.version, self.storage.version)
        chunk = b"".join(filter(None, map(self._frame_of, changes)))
        if trio.current_time() >= self._next_bookmark:
            self._next_bookmark = trio.current_time() + self.bookmark_seconds
            chunk += _bookmark(self.version, {}, {})
        return chunk

    def _frame_of(self, change: Change) -> bytes:
        """Return the frame that a selector makes of a change; empty if it selects neither side."""
        was, is_ = self._selects(change.before), self._selects(change.after)
        if is_ and change.after is not None:
            return _frame("MODIFIED" if was else "ADDED", change.after)
        if was and change.before is not None:
            return _frame("DELETED", with_version(change.before, change.version))
        return b""

    def _selects(self, data: Data | None) -> bool:
        if data is None:
            return False
        if self.namespace and data["metadata"].get("namespace") != self.namespace:
            return False
        return self.matches(data)


_FIRST = ("kind", "apiVersion", "metadata")
_FIRST_OF_METADATA = ("name", "generateName", "namespace", "uid", "resourceVersion")
"""The fields that an API server writes before all others, in this order."""


def _frame(type_: str, data: Data) -> bytes:
    metadata = _in_order(data["metadata"], _FIRST_OF_METADATA)
    ordered = _in_order({**data, "metadata": metadata}, _FIRST)
    return orjson.dumps({"type": type_, "object": ordered}) + b"\n"


def _in_order(data: Data, first: tuple[str, ...]) -> Data:
    return {name: data[name] for name in first if name in data} | dict(data)


def _bookmark(version: int, identity: Mapping[str, Any], annotations: Mapping[str, str]) -> bytes:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations  # type: ignore[assignment]
    return _frame("BOOKMARK", {**identity, "metadata": metadata})
