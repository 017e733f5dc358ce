"""Writes events to the API server: of each pod in the order in which they were recorded.

Recording never waits: events go into bounded queues, and what does not fit is dropped and
counted. Pods take turns, so that one that has much to say stands before nobody else; one whose
event could not be written waits for the next try, and holds up no other. While the API server is
away events stay there; what it refuses is logged and dropped, and what it answers with an error
again and again, too. Warnings have queues and writers of their own: somebody may be looking for
them. Those that are no warnings let a start that is under way go first, for a second: half of a
start's requests are events.
"""

import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
import trio
from attrs import define, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.foreign_text import spelled_out
from trio_kubelet.k8s import (
    Event,
    EventSource,
    ObjectMeta,
    ObjectReference,
    Pod,
    Time,
)
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.kinds import EVENTS
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.telemetry.correlation import Correlator, EventDecision
from trio_kubelet.telemetry.events import EventType, RecordedEvent

log = structlog.get_logger("events")

COMPONENT = "kubelet"
QUEUE_SIZE = 1000
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=10.0)
PATIENCE_SECONDS = 1.0
"""The time that an event that is no warning waits for an idle node at most."""
WRITERS = 4
"""Requests at once for warnings, and for the others: so many keep up with a burst of starts."""
MOST_TRIES = 12
"""So often an event is sent that is answered with an error; as often as the Go kubelet sends it."""
MOST_RETRY_AFTER_SECONDS = 60.0
"""The longest wait that an answer can ask for."""
NAMESPACES_KEPT = 1000
"""Of so many it is known when they had their last turn."""
NAME_LENGTH = 253
MESSAGE_LENGTH = 1024
"""The most that the API server takes of a message, in characters."""


async def at_once() -> None:
    """There is nothing that goes before events."""


class EventWriter:
    """Takes the events of an `EventRecorder`, and has the tasks that write them.

    It takes events before there is an API server to write them to. `wait_idle` returns when nothing
    more urgent is going on.
    """

    def __init__(
        self,
        node_name: str,
        clock: Clock,
        *,
        queue_size: int = QUEUE_SIZE,
        wait_idle: Callable[[], Awaitable[None]] = at_once,
    ) -> None:
        self._node_name = node_name
        self._clock = clock
        self._queue_size = queue_size
        self._wait_idle = wait_idle
        self._correlator = Correlator()
        self._warnings = _Turns(queue_size)
        self._others = _Turns(queue_size)
        self._dropped = 0
        self._last_ns = 0

    def take(self, recorded: RecordedEvent) -> None:
        """Take an event as of now; never blocks.

        Names are made of the time: no two events have the same.
        """
        self._last_ns = max(self._clock.now_ns(), self._last_ns + 1)
        event = api_event(recorded, self._node_name, self._last_ns)
        turns = self._warnings if recorded.type is EventType.WARNING else self._others
        if not turns.put(_Waiting(event, recorded.caused_by_pod)):
            if not self._dropped:
                log.warning("event queue full, dropping events")
            self._dropped += 1

    async def run(self, api: Api) -> None:
        """Write events for ever. Cancelling loses those that wait."""
        async with trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(self._write_warnings, api)
                nursery.start_soon(self._write_others, api)

    async def _write_warnings(self, api: Api) -> None:
        while True:
            async with self._warnings.next() as waiting:
                await self._write_safely(api, self._warnings, waiting)

    async def _write_others(self, api: Api) -> None:
        while True:
            async with self._others.next() as waiting:
                if waiting.correlated is None:
                    await self._wait_until_idle(waiting.event)
                await self._write_safely(api, self._others, waiting)

    async def _wait_until_idle(self, event: Event) -> None:
        """Let others go first, unless the event has waited long or the queue fills up."""
        if self._others.count > self._queue_size // 2:
            return
        recorded_at = event.first_timestamp.ns if event.first_timestamp else 0
        waited = (self._clock.now_ns() - recorded_at) / 1e9
        left = PATIENCE_SECONDS - waited
        with trio.move_on_after(min(max(left, 0.0), PATIENCE_SECONDS)):
            await self._wait_idle()

    async def _write_safely(self, api: Api, turns: "_Turns", waiting: "_Waiting") -> None:
        """Write one event; a bug that it brings out does not hold up the others."""
        try:
            await self._write_next(api, turns, waiting)
        except Exception:
            event = waiting.event
            about = event.involved_object
            log.exception(
                "event write failed", object=f"{about.namespace}/{about.name}", reason=event.reason
            )

    async def _write_next(self, api: Api, turns: "_Turns", waiting: "_Waiting") -> None:
        if self._dropped:
            log.warning("events dropped", number=self._dropped)
            self._dropped = 0
        if waiting.correlated is None:
            waiting.correlated = self._correlator.correlate(
                waiting.event, self._clock.now_ns(), caused_by_pod=waiting.caused_by_pod
            )
        if waiting.correlated is None:
            return
        try:
            await _send(api, waiting.correlated)
        except ApiError as error:
            waiting.answered_errors += not error.is_unreachable
            if error.is_retriable and waiting.answered_errors < MOST_TRIES:
                asked_for = min(error.retry_after_seconds or 0.0, MOST_RETRY_AFTER_SECONDS)
                turns.put_back(waiting, waiting.retries.next_seconds(at_least=asked_for))
                return
            self._correlator.forget(waiting.correlated.key)
            about, tries = waiting.event.involved_object, waiting.answered_errors
            log.warning(
                "event rejected by the API server",
                object=f"{about.namespace}/{about.name}",
                reason=waiting.event.reason,
                tries=tries,
                error=str(error),
            )


_QueueKey = tuple[str, bool]
"""The UID of a pod, or the node's name; and whether pods caused it, beside which the node's own
events go on."""


@define
class _Waiting:
    """An event on its way, and what its tries have come to."""

    event: Event
    caused_by_pod: bool = False
    correlated: EventDecision | None = None
    """The form in which it was tried; None before the first try."""
    answered_errors: int = 0
    retries: Retries = field(factory=lambda: Retries(RETRY))

    @property
    def queue(self) -> _QueueKey:
        """The queue that it waits in."""
        return self.event.involved_object.uid, self.caused_by_pod


class _Turns:
    """Events that wait, in turns of namespaces and of the pods in them; at most `size` of all."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._size = size
        self._waiting: OrderedDict[_QueueKey, deque[_Waiting]] = OrderedDict()
        self._busy: set[_QueueKey] = set()
        self._turns = 0
        self._had_turn: dict[str, int] = {}
        """The number of the last turn of each namespace."""
        self._not_before: dict[_QueueKey, float] = {}
        """The time at which the next event of a pod may be tried, in trio's clock."""
        self._changed = trio.Event()

    def put(self, waiting: _Waiting) -> bool:
        """Let an event wait; False if one of the pod with the most of them was dropped for it."""
        key = waiting.queue
        self._waiting.setdefault(key, deque()).append(waiting)
        self.count += 1
        self._tell()
        if self.count <= self._size:
            return True
        longest = max(reversed(self._waiting), key=lambda each: len(self._waiting[each]))
        self._waiting[longest].pop()
        if not self._waiting[longest]:
            self._forget(longest)
        self.count -= 1
        return False

    def put_back(self, waiting: _Waiting, seconds: float) -> None:
        """Let an event that could not be written wait for so long, before the others of its pod."""
        key = waiting.queue
        self._waiting.setdefault(key, deque()).appendleft(waiting)
        self._waiting.move_to_end(key)
        self._not_before[key] = trio.current_time() + seconds
        self.count += 1

    @asynccontextmanager
    async def next(self) -> AsyncIterator[_Waiting]:
        """Wait for the next event; no other of its pod is given while this is held."""
        while (key := self._next_pod()) is None:
            free = self._waiting.keys() - self._busy
            wake_at = min((self._not_before[each] for each in free), default=math.inf)
            with trio.move_on_at(wake_at):
                await self._changed.wait()
        queue = self._waiting[key]
        waiting = queue.popleft()
        self.count -= 1
        self._take_turn(waiting)
        if queue:
            self._waiting.move_to_end(key)
        else:
            self._forget(key)
        self._busy.add(key)
        try:
            yield waiting
        finally:
            self._busy.discard(key)
            self._tell()

    def _take_turn(self, waiting: _Waiting) -> None:
        if len(self._had_turn) > NAMESPACES_KEPT:
            self._had_turn.clear()
        self._turns += 1
        self._had_turn[_namespace(waiting)] = self._turns

    def _next_pod(self) -> _QueueKey | None:
        now = trio.current_time()
        may_go = (
            key
            for key in self._waiting
            if key not in self._busy and self._not_before.get(key, now) <= now
        )
        return min(may_go, key=self._last_turn, default=None)

    def _last_turn(self, key: _QueueKey) -> int:
        return self._had_turn.get(_namespace(self._waiting[key][0]), 0)

    def _forget(self, key: _QueueKey) -> None:
        del self._waiting[key]
        self._not_before.pop(key, None)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def _send(api: Api, correlated: EventDecision) -> None:
    event = correlated.event
    if correlated.repeats and await _counted_up(api, event):
        return
    try:
        await api.create(EVENTS, event, event.metadata.namespace)
    except ApiError as error:
        if not error.is_already_exists:  # the answer to an earlier try was lost
            raise


async def _counted_up(api: Api, event: Event) -> bool:
    """True if the event was there still, and says now that it happened again."""
    fields = encode(event)
    body = {name: fields[name] for name in ("count", "lastTimestamp", "message")}
    try:
        await api.patch(EVENTS, event.metadata.name, event.metadata.namespace, body=body)
    except ApiError as error:
        if not error.is_not_found:
            raise
        return False
    return True


def api_event(recorded: RecordedEvent, node_name: str, now_ns: int) -> Event:
    """Make the API's event of one that was recorded, seen once, now."""
    about = _about(recorded, node_name)
    now = Time.from_ns(now_ns)
    return Event(
        metadata=ObjectMeta(
            name=_name(about.name, now_ns),
            namespace=about.namespace or "default",
            annotations=recorded.annotations,
        ),
        involved_object=about,
        reason=recorded.reason,
        message=spelled_out(recorded.message)[:MESSAGE_LENGTH],
        source=EventSource(component=COMPONENT, host=node_name),
        reporting_component=COMPONENT,
        reporting_instance=node_name,
        first_timestamp=now,
        last_timestamp=now,
        count=1,
        type=str(recorded.type),
    )


def _name(about: str, now_ns: int) -> str:
    """The name of the object and the time, as every Kubernetes client names its events."""
    suffix = f".{now_ns:x}"
    return about[: NAME_LENGTH - len(suffix)].rstrip("-.") + suffix


def _namespace(waiting: _Waiting) -> str:
    return waiting.event.involved_object.namespace


def _about(recorded: RecordedEvent, node_name: str) -> ObjectReference:
    pod, claim = recorded.pod, recorded.claim
    if claim is not None:
        return ObjectReference(
            api_version="v1",
            kind="PersistentVolumeClaim",
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            uid=claim.metadata.uid,
            resource_version=claim.metadata.resource_version,
        )
    if recorded.volume is not None:
        metadata = recorded.volume.metadata
        return ObjectReference(
            api_version="v1",
            kind="PersistentVolume",
            name=metadata.name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        )
    if pod is None:  # by its name, not its UID: `kubectl describe node` looks for that
        return ObjectReference(kind="Node", name=node_name, uid=node_name)
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        field_path=_field_path(pod, recorded.container),
    )


def _field_path(pod: Pod, container: str) -> str:
    lists = (
        ("containers", pod.spec.containers),
        ("initContainers", pod.spec.init_containers),
        ("ephemeralContainers", pod.spec.ephemeral_containers),
    )
    for name, containers in lists:
        if any(each.name == container for each in containers):
            return f"spec.{name}{{{container}}}"
    return ""
