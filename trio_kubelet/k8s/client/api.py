"""The API server as the parts of the agent see it: requests, answers, events.

Parts type their parameter with `Api`; `ApiClient` is the real one. Requests are trio coroutines
that raise `ApiError`; when cancelled, nobody knows whether the server has done what it was asked.
`watch` is the raw stream; `reflect` in `reflector.py` makes of it events that can be relied on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Generic, Protocol, TypeAlias, TypeVar, overload

import trio
from attrs import frozen

from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.k8s.meta import ObjectMeta


class Recovery:
    """A signal that a server which was away answers again.

    It is given by the heartbeat, which asks most often, or by a reflection.

    Who waits takes `next` before it asks, and so hears of a return during a request that hangs.
    """

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = trio.Event()

    def tell(self) -> None:
        """The server answers again: wake all who wait for that."""
        told, self.next = self.next, trio.Event()
        told.set()


T = TypeVar("T", bound=ApiType)
A = TypeVar("A", bound=ApiType)


class PatchType(StrEnum):
    """The kinds of patches; the values are the content types."""

    STRATEGIC = "application/strategic-merge-patch+json"
    MERGE = "application/merge-patch+json"


@frozen(kw_only=True)
class Selection:
    """The objects of a kind that a namespace and selectors, each empty for all, leave."""

    namespace: str = ""
    fields: str = ""
    labels: str = ""


EVERYTHING = Selection()


@frozen
class UndecodableObject:
    """An object that is there but does not fit its class: what could be read of it, and why."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    why: str


@frozen
class ListPage(Generic[T]):
    """One answer to a list: `continue_` is empty on the last page.

    Objects that cannot be decoded are not in `items`; each is logged by name.
    """

    items: tuple[T, ...]
    resource_version: str
    continue_: str = ""
    undecodable: tuple[UndecodableObject, ...] = ()


@frozen
class ObjectChanged(Generic[T]):
    """An object is new, or there is a newer version of it."""

    object: T


@frozen
class ObjectRemoved(Generic[T]):
    """An object is gone; the value is its last version, or the last one that was seen."""

    object: T


@frozen
class ListSynced:
    """All that was there has been handed out, and the removal of all that had gone."""


WatchEvent: TypeAlias = ObjectChanged[T] | ObjectRemoved[T] | ListSynced
"""The events that `reflect` hands out."""


class FrameType(StrEnum):
    """The content of a watch's frame; a frame ERROR is raised as ApiError instead."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@frozen
class Frame(Generic[T]):
    """One frame of a watch: a version of an object, or (BOOKMARK) that all is told so far.

    `initial_events_end` marks the bookmark after the last object that was there at the start.
    """

    type: FrameType
    resource_version: str
    object: T | UndecodableObject | None = None
    initial_events_end: bool = False


@frozen
class FrameHead:
    """The beginning of a frame: of which object it has a version, and of which version it is."""

    type: FrameType
    resource_version: str
    namespace: str = ""
    name: str = ""
    uid: str = ""


@frozen
class ReceivedFrame(Generic[T]):
    """A frame that was received; `read` decodes it, and raises ApiError for what is none."""

    head: FrameHead
    size_bytes: int
    read: Callable[[], Awaitable[Frame[T]]]


def metadata_of(obj: ApiType) -> ObjectMeta:
    """Return the metadata that every object of a kind has, though parts of objects have none."""
    metadata: ObjectMeta = obj.metadata  # type: ignore[attr-defined]
    return metadata


class Api(Protocol):
    """The API server. `namespace` is empty for objects that have none, and to list all."""

    @property
    def recovery(self) -> Recovery:
        """Tells of the end of an outage; reflections wait for it, and find it out."""
        ...

    async def get(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        deadline_seconds: float | None = None,
    ) -> T:
        """Return the object as it is now."""
        ...

    async def list(
        self,
        kind: Kind[T],
        selection: Selection = EVERYTHING,
        *,
        limit: int = 0,
        resource_version: str = "",
        continue_: str = "",
    ) -> ListPage[T]:
        """Return what there is, or one page of at most `limit` objects."""
        ...

    @overload
    async def create(
        self, kind: Kind[T], obj: T, namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> T: ...

    @overload
    async def create(
        self,
        kind: Kind[T],
        obj: ApiType,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        answer_type: type[A],
    ) -> A: ...

    async def create(
        self,
        kind: Kind[T],
        obj: ApiType,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        answer_type: type[A] | None = None,
    ) -> T | A:
        """POST an object, or to a subresource of the object `name`; returns what there is now."""
        ...

    async def update(self, kind: Kind[T], obj: T, *, subresource: str = "") -> T:
        """PUT an object in the place of the one of its name and namespace."""
        ...

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, object],
        type: PatchType = PatchType.STRATEGIC,  # noqa: A002
        subresource: str = "",
    ) -> T:
        """Change parts of an object; returns what it is then."""
        ...

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Delete an object, if it is still of this UID and version, where they are given."""
        ...

    async def delete_selected(self, kind: Kind[T], selection: Selection) -> int:
        """Delete all objects that selectors leave; returns how many. Raises ValueError for all."""
        ...

    async def version(self) -> str:
        """Return the server's `gitVersion`, such as v1.36.3."""
        ...

    def watch(
        self,
        kind: Kind[T],
        selection: Selection = EVERYTHING,
        *,
        resource_version: str = "",
        send_initial_events: bool = False,
        timeout_seconds: int = 0,
    ) -> AbstractAsyncContextManager[AsyncIterator[ReceivedFrame[T]]]:
        """Follow changes after a version; the iterator ends when the server ends the watch.

        With `send_initial_events` it begins with what is there (a streaming list).
        """
        ...
