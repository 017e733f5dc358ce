"""The events that a consumer is told, given what lists and watches say; pure.

Lists and watches repeat themselves, break, and have gaps. `Deltas` holds the version of each
object that the consumer knows, and lets through only what is news to it: each version once and in
order, the end of one incarnation (UID) before the beginning of the next, and, when a list is
complete, the removal of all that was not in it.
"""

from typing import Generic, TypeVar

from attrs import frozen

from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client.api import (
    Frame,
    FrameType,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    UndecodableObject,
    WatchEvent,
    metadata_of,
)
from trio_kubelet.k8s.versions import version_number

T = TypeVar("T", bound=ApiType)

Key = tuple[str, str]
"""Namespace and name."""


@frozen
class _KnownObject(Generic[T]):
    """The last version of an object that the consumer was told."""

    uid: str
    resource_version: str
    object: T


class Deltas(Generic[T]):
    """The consumer's knowledge of the objects of one reflection.

    A list begins with `begin_list`, hands every item to `listed`, and ends with `end_list`. A
    streaming list begins with `begin_list` and goes on with frames: the bookmark that ends its
    first part ends the list.
    """

    __slots__ = ("_known", "_listed", "_version", "resource_version")

    def __init__(self) -> None:
        self._known: dict[Key, _KnownObject[T]] = {}
        self._listed: set[Key] | None = set()
        self._version = -1
        self.resource_version = ""
        """The version from which a watch has to go on; empty while there has to be a list first."""

    @property
    def is_listing(self) -> bool:
        """True if a list has begun that is not complete."""
        return self._listed is not None

    def begin_list(self) -> None:
        """Forget where the watch was, but not what the consumer knows."""
        self._listed = set()
        self.resource_version = ""

    def listed(self, item: T | UndecodableObject) -> tuple[WatchEvent[T], ...]:
        """Take an item of a list: what is there now, whatever was known before."""
        return self._present(item)

    def end_list(self, resource_version: str) -> tuple[WatchEvent[T], ...]:
        """The list is complete: what was not in it is gone. A watch goes on at this version."""
        listed = self._listed or set()
        gone = [key for key in self._known if key not in listed]
        removed = tuple(ObjectRemoved(self._known.pop(key).object) for key in gone)
        self._listed = None
        self.resource_version = resource_version
        self._version = version_number(resource_version)
        return (*removed, ListSynced())

    def arrives(self, resource_version: str) -> bool:
        """A frame of a watch arrives, of this version; False if it is to be left out.

        That is a repetition, also of objects that are gone meanwhile. What arrives has to be taken
        before the next watch begins, but not in this order: see `read_ahead.py`.
        """
        number = version_number(resource_version)
        if 0 <= number <= self._version:
            return False
        self._version = number
        self.resource_version = resource_version
        return True

    def take(self, frame: Frame[T]) -> tuple[WatchEvent[T], ...]:
        """Take a frame of a streaming list, or one of a watch that has arrived.

        Those of one object are taken in their order.
        """
        if frame.initial_events_end and self.is_listing:
            return self.end_list(frame.resource_version)
        if frame.object is None:
            return ()
        if frame.type is FrameType.DELETED:
            return self._absent(frame.object)
        return self._present(frame.object)

    def _present(self, item: T | UndecodableObject) -> tuple[WatchEvent[T], ...]:
        key, uid, version = _identity(item)
        if self._listed is not None:
            self._listed.add(key)
        known = self._known.get(key)
        events: tuple[WatchEvent[T], ...] = ()
        if known is not None and known.uid != uid:
            del self._known[key]
            events = (ObjectRemoved(known.object),)
            known = None
        if isinstance(item, UndecodableObject):
            return events
        if known is not None and known.resource_version == version:
            return events
        self._known[key] = _KnownObject(uid, version, item)
        return (*events, ObjectChanged(item))

    def _absent(self, item: T | UndecodableObject) -> tuple[WatchEvent[T], ...]:
        key, uid, _ = _identity(item)
        known = self._known.pop(key, None)
        if known is None:
            return ()
        if isinstance(item, UndecodableObject) or known.uid != uid:
            return (ObjectRemoved(known.object),)
        return (ObjectRemoved(item),)


def _identity(item: ApiType | UndecodableObject) -> tuple[Key, str, str]:
    metadata = item if isinstance(item, UndecodableObject) else metadata_of(item)
    return (metadata.namespace, metadata.name), metadata.uid, metadata.resource_version
