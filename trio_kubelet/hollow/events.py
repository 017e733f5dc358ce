"""The stream of GetContainerEvents.

Every listener has a bounded buffer of its own; an event that finds it full is lost for that
listener, and counted. While nobody listens, events wait for up to five minutes for the next
listener, as in containerd 2. Options make the stream as unreliable as containerd 1.7's.
"""

import random
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import cast

import trio
from attrs import frozen

from trio_kubelet.hollow.images import ImageStore
from trio_kubelet.hollow.options import HollowOptions
from trio_kubelet.hollow.records import (
    EncodedResponse,
    HollowSandbox,
    encoded_status,
    sandbox_status,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.tasks.clock import Clock

_Event = EncodedResponse[cri.ContainerEventResponse]

Observer = Callable[[int, str, HollowSandbox], None]
"""Takes what `Events.send` takes, at once and without loss."""

_BACKLOG_NS = 300 * 1_000_000_000


class Events:
    """Sends what happens to whoever listens."""

    def __init__(self, clock: Clock, images: ImageStore, options: HollowOptions) -> None:
        self._clock = clock
        self._images = images
        self._options = options
        self._random = random.Random(options.seed)  # noqa: S311
        self._listeners: list[trio.MemorySendChannel[_Event]] = []
        self._backlog: deque[tuple[int, _Event]] = deque(maxlen=options.event_buffer)
        """With the times when they happened."""
        self._observers: list[Observer] = []
        self._turn = 0
        self.lost = 0

    def add_observer(self, observer: Observer) -> None:
        """Call `observer` in the very moment of each event; it must neither wait nor raise."""
        self._observers.append(observer)

    def send(self, kind: int, container_id: str, sandbox: HollowSandbox) -> None:
        """Tell of a container, or of the sandbox itself if the id is the sandbox's."""
        for observer in self._observers:
            observer(kind, container_id, sandbox)
        if not self._options.has_events:
            return
        now = self._clock.now_ns()
        event = _event(kind, container_id, sandbox, now, self._images)
        if self._random.random() < self._options.event_loss:
            self.lost += 1
        elif not self._listeners:
            self._backlog.append((now, event))
        elif self._options.share_event_channel:
            self._turn += 1
            self._deliver(self._listeners[self._turn % len(self._listeners)], event)
        else:
            for listener in self._listeners:
                self._deliver(listener, event)

    async def listen(
        self, request: cri.GetEventsRequest
    ) -> AsyncGenerator[cri.ContainerEventResponse, None]:
        """GetContainerEvents: what waited, then all that happens until the stream is cut.

        Raises UNAVAILABLE when the runtime goes away. Cancelling it unsubscribes.
        """
        del request
        if not self._options.has_events:
            raise RpcError(Code.UNIMPLEMENTED, "method GetContainerEvents not implemented")
        send, receive = trio.open_memory_channel[_Event](self._options.event_buffer)
        oldest = self._clock.now_ns() - _BACKLOG_NS
        for happened_at, event in self._backlog:
            if happened_at >= oldest:
                self._deliver(send, event)
        self._backlog.clear()
        self._listeners.append(send)
        try:
            async for event in receive:
                yield cast("cri.ContainerEventResponse", event)
        finally:
            if send in self._listeners:
                self._listeners.remove(send)
            receive.close()
        raise RpcError(Code.UNAVAILABLE, "container events subscription closed by server")

    def cut(self) -> None:
        """End all streams."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _deliver(self, listener: trio.MemorySendChannel[_Event], event: _Event) -> None:
        try:
            listener.send_nowait(event)
        except trio.WouldBlock:
            self.lost += 1


def _event(
    kind: int, container_id: str, sandbox: HollowSandbox, now_ns: int, images: ImageStore
) -> _Event:
    """Make an event that shows the pod as it is now, encoded: it has all statuses of the pod."""
    event = cri.ContainerEventResponse(
        container_id=container_id,
        container_event_type=cri.ContainerEventType(kind),
        created_at=now_ns,
        pod_sandbox_status=sandbox_status(sandbox),
    )
    statuses = (encoded_status(each, images) for each in sandbox.containers.values())
    # A message of two parts is one after the other: lists are joined.
    return EncodedResponse(b"".join((bytes(event), *statuses)), cri.ContainerEventResponse)


@frozen(kw_only=True)
class HollowContext:
    """The things that containers and sandboxes of one runtime share; `ids` makes their ids."""

    clock: Clock
    options: HollowOptions
    events: Events
    ids: random.Random
