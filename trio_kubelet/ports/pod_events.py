"""Events of the node's pods, for those who watch them.

A client that watches is first told of each pod that there is, then of each change. One task tells
of changes: it compares a pod with what was told of it last, so that of changes which come faster
than they can be told only the last one is. An event is encoded once, and kept for all who watch in
one window of numbered events. A client that has not taken an event when it leaves the window has
lost it: its watch ends with an error, and it begins anew. As long as nobody watches nothing is
encoded.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable

import structlog
import trio

from trio_kubelet.k8s import ObjectMeta, Pod, PodStatus
from trio_kubelet.k8s.protobuf import encode_protobuf
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs import v1alpha1 as wire
from trio_kubelet.status import Statuses
from trio_kubelet.sync.store import PodStore
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("ports")

ADDED = wire.EventType(wire.EventType.ADDED)
MODIFIED = wire.EventType(wire.EventType.MODIFIED)
DELETED = wire.EventType(wire.EventType.DELETED)
ALL_ADDED = wire.EventType(wire.EventType.INITIAL_SYNC_COMPLETE)

MAX_EVENTS = 1024
MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of all events in the window; the newest is in it whatever its size."""


def pod_change(before: Pod | None, after: Pod | None) -> tuple[wire.EventType, Pod] | None:
    """The event between two versions of a pod, and what it tells of the pod; None if none is due.

    Of a pod that has gone only name, namespace and UID are told.
    """
    if before is None:
        return (ADDED, after) if after is not None else None
    if after is None:
        meta = before.metadata
        named = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid)
        return DELETED, Pod(metadata=named)
    return (MODIFIED, after) if after != before else None


class EventWindow:
    """The newest events, by consecutive numbers. `end` is the number of the next one."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.end = 0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[wire.WatchPodsEvent] = deque()
        self._bytes = 0

    def append(self, event: wire.WatchPodsEvent) -> None:
        """Add an event; the oldest ones go for it."""
        self._events.append(event)
        self._bytes += len(event.pod)
        self.end += 1
        while len(self._events) > 1 and self._is_over_full():
            self._bytes -= len(self._events.popleft().pod)

    def get(self, number: int) -> wire.WatchPodsEvent | None:
        """Return an event that was added; None if it has gone."""
        at = number - self.end + len(self._events)
        return self._events[at] if at >= 0 else None

    def clear(self) -> None:
        """Drop all events; the numbers go on."""
        self._events.clear()
        self._bytes = 0

    def _is_over_full(self) -> bool:
        return len(self._events) > self._max_events or self._bytes > self._max_bytes


class PodEvents:
    """The events of the pods that sources have, with their newest statuses.

    `pod` finds one by its UID. `on_dropped` is called with the number of events that somebody who
    watches has lost.
    """

    def __init__(
        self, store: PodStore, statuses: Statuses, pod: Callable[[str], Pod | None]
    ) -> None:
        self.on_dropped: Callbacks[[int]] = Callbacks()
        self._pod = pod
        self._window = EventWindow(MAX_EVENTS, MAX_EVENT_BYTES)
        self._told: dict[str, Pod] = {}
        self._changes = 0
        self._untold: dict[str, int] = {}
        """The numbers of changes, by the UIDs of their pods, in order."""
        self._being_told: int | None = None
        self._wake, self._progress = trio.Event(), trio.Event()
        self._watches = 0
        # Events and lists are encoded beside each other: many lists hold up no event.
        self._event_thread, self._list_thread = trio.CapacityLimiter(1), trio.CapacityLimiter(1)
        store.on_change.add(self._changed)
        statuses.on_change.add(self._status_changed)

    async def run(self) -> None:
        """Tell of changes until cancelled."""
        while True:
            if not self._untold:
                self._wake = trio.Event()
                await self._wake.wait()
            uid = next(iter(self._untold))
            self._being_told = self._untold.pop(uid)
            await self._tell(uid)
            self._being_told = None
            self._notify()
            await trio.lowlevel.checkpoint()

    async def watch(self) -> AsyncIterator[wire.WatchPodsEvent]:
        """Yield an event for each pod, one that these were all, then those that come.

        Raises RpcError (RESOURCE_EXHAUSTED) if they come faster than they are taken.
        """
        self._watches += 1
        try:
            await self._told_up_to(self._changes)
            pods, number = tuple(self._told.values()), self._window.end
            for pod in pods:
                yield await self._event(ADDED, pod, self._list_thread)
            yield wire.WatchPodsEvent(type=ALL_ADDED)
            while True:
                while number == self._window.end:
                    await self._progress.wait()
                yield self._taken(number)
                number += 1
        finally:
            self._watches -= 1
            if not self._watches:
                self._window.clear()

    def _status_changed(self, pod: Pod, _status: PodStatus) -> None:
        self._changed(pod.metadata.uid)

    def _changed(self, uid: str) -> None:
        self._changes += 1
        self._untold.setdefault(uid, self._changes)
        self._wake.set()

    async def _tell(self, uid: str) -> None:
        """Tell of a pod if it is another one than was told of last."""
        pod = self._pod(uid)
        change = pod_change(self._told.get(uid), pod)
        if change is None:
            return
        event = None
        if self._watches:
            try:
                event = await self._event(*change, self._event_thread)
            except Exception:  # A bug of one pod's: the others are to be told of all the same.
                log.exception("pod cannot be encoded", pod=change[1].metadata.key)
        # Both at once, or somebody who begins to watch would miss the event or have it twice.
        if pod is None:
            del self._told[uid]
        else:
            self._told[uid] = pod
        if event is not None and self._watches:
            self._window.append(event)

    async def _event(
        self, event_type: wire.EventType, pod: Pod, thread: trio.CapacityLimiter
    ) -> wire.WatchPodsEvent:
        encoded = await run_in_thread(encode_protobuf, pod, limiter=thread)
        return wire.WatchPodsEvent(type=event_type, pod=encoded)

    def _taken(self, number: int) -> wire.WatchPodsEvent:
        event = self._window.get(number)
        if event is None:
            dropped = self._window.end - number
            self.on_dropped.call(dropped)
            raise RpcError(
                Code.RESOURCE_EXHAUSTED, f"events are not taken fast enough: {dropped} were dropped"
            )
        return event

    async def _told_up_to(self, change: int) -> None:
        """Wait until all changes are told of up to that one."""
        while self._first_untold() <= change:
            await self._progress.wait()

    def _first_untold(self) -> int:
        if self._being_told is not None:
            return self._being_told
        return next(iter(self._untold.values()), self._changes + 1)

    def _notify(self) -> None:
        self._progress.set()
        self._progress = trio.Event()
