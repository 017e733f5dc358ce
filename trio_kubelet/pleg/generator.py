"""The pod lifecycle event generator: relist, event stream, and the trust between them.

The relist is the safety net: it lists everything, compares ids and states with what the cache
holds, inspects the pods that look different (several at once), and tells the sync loop. Since
pods' own tasks put what they did into the cache, only what happened by itself looks different.
An event of the runtime makes the generator inspect one pod at once. How often the relist runs
is decided by the machine in `state_machines/pleg.py`, whose every step goes to the journal.
"""

import math
from functools import partial

import structlog
import trio
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from state_machines.pleg import (
    PLEG,
    PlegEvent,
    PlegEvidence,
    PlegState,
    RuntimeTraits,
    health_threshold_seconds,
    relist_is_due,
    relist_period_seconds,
    runtime_traits,
    uses_events,
)
from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.pleg.event_stream_audit import EventStreamAudit
from trio_kubelet.pleg.listing import NOTHING_LISTED, Announcement, ListedPod, Listing, is_news
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks, both
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.telemetry import Journal, Walk

log = structlog.get_logger("pleg")

INSPECTIONS_AT_ONCE = 8
INSPECTIONS_OF_NAMESPACE = 4
RECONNECT = BackoffPolicy(initial_seconds=0.5, cap_seconds=30.0)

_EVENT_STATES = {
    cri.ContainerEventType.CONTAINER_STARTED_EVENT: ObservedState.RUNNING,
    cri.ContainerEventType.CONTAINER_STOPPED_EVENT: ObservedState.EXITED,
}


@frozen(kw_only=True)
class PodChange:
    """A pod that looks different: its task should sync. `kind` says how it was found."""

    uid: str
    kind: str


class Pleg:
    """Owner of the relist and of the event stream. `run` returns only when cancelled.

    `on_relist` is called with the seconds that a complete relist took, and with those since the
    one before, `on_event` with the seconds that an event of the runtime took to come,
    `on_stream_opened` and `on_stream_failed` when a stream of them begins and ends.
    """

    def __init__(
        self,
        *,
        inspector: PodInspector,
        cache: RuntimeCache,
        changes: trio.MemorySendChannel[PodChange],
        journal: Journal,
        clock: Clock,
        events_enabled: bool,
    ) -> None:
        self._inspector, self._client = inspector, inspector.client
        self._cache = cache
        self._changes = changes
        self._clock = clock
        self._events_enabled = events_enabled
        self._inspections = FairLimiter(INSPECTIONS_AT_ONCE, INSPECTIONS_OF_NAMESPACE)
        self._relist_now = trio.Event()
        self._returned = trio.Event()
        self._follow_ups = BackgroundTasks()
        self._audit: EventStreamAudit | None = None
        self._misses = 0
        self._relisted_at = -math.inf
        self._trusted_age_seconds = 0.0
        self._listing = Listing()
        self._walk = Walk(PLEG, PlegState.GENERIC, journal, "runtime", notes_all=True)
        self.dropped = 0
        self._untold: set[str] = set()
        self.on_relist: Callbacks[[float, float]] = Callbacks()
        self.on_event: Callbacks[[float]] = Callbacks()
        self.on_stream_opened: Callbacks[[]] = Callbacks()
        self.on_stream_failed: Callbacks[[]] = Callbacks()
        cache.on_observation.add(self._on_observation)

    @property
    def state(self) -> PlegState:
        """The trust in the runtime's events."""
        return self._walk.state

    def seconds_since_relist(self) -> float:
        """The age of the last complete relist."""
        return trio.current_time() - self._relisted_at

    def health_threshold_seconds(self) -> float:
        """The age up to which the last complete relist leaves the node Ready."""
        return health_threshold_seconds(self.state, self._trusted_age_seconds)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relist and listen; reports started after the first complete listing."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._relist_forever)
            nursery.start_soon(self._follow_ups.run)
            nursery.start_soon(self._listen_forever)
            task_status.started()

    async def _relist_forever(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        first = True
        while True:
            self._relist_now = trio.Event()
            try:
                await self.relist()
            except RpcError as error:
                log.debug("relist failed", error=str(error))
                is_complete = False
            except Exception:
                log.exception("relist failed, will retry")
                is_complete = False
            else:
                is_complete = not (self._untold or self._cache.unseen)
                if first:
                    task_status.started()
                    first = False
            try:
                self._judge()
            except Exception:
                log.exception("event stream audit failed")
                is_complete = False
            state = self.state if is_complete else PlegState.GENERIC
            period = relist_period_seconds(state)
            with trio.move_on_after(period):
                await self._relist_now.wait()

    async def relist(self) -> None:
        """Look at everything once. Raises RpcError if the runtime cannot list what it has.

        A pod whose inspection fails is that pod's problem: it counts as not seen, and is
        inspected again by the next relist.
        """
        self._tell_untold()
        listed_at = trio.current_time()
        listing = await self._list()
        unseen: set[str] = set()
        async with trio.open_nursery() as nursery:
            for uid in sorted(self._cache.unlike(listing.states, listed_at)):
                listed = listing.pods.get(uid, NOTHING_LISTED)
                nursery.start_soon(self._inspect_listed, uid, listed, listed_at, unseen)
        self._cache.listing_completed(listed_at, unseen)
        before, self._relisted_at = self._relisted_at, trio.current_time()
        self.on_relist.call(self._relisted_at - listed_at, self._relisted_at - before)
        self._trusted_age_seconds = 0.0

    async def _list(self) -> Listing:
        """Everything in the runtime."""
        client = self._client
        sandboxes, containers = await both(client.list_pod_sandboxes, client.list_containers)
        last, self._listing = self._listing, self._listing.updated(sandboxes, containers)
        for uid in self._listing.refused - last.refused:
            log.warning("runtime pod has an invalid UID, ignoring it", uid=uid)
        if self._audit is not None and self._listing is not last:
            listed = {container.id for container in containers}
            self._audit.forget(c.id for c in last.containers if c.id not in listed)
        return self._listing

    async def _inspect_listed(
        self, uid: str, listed: ListedPod, listed_at: float, unseen: set[str]
    ) -> None:
        try:
            async with self._inspections.share(listed.namespace):
                known = self._cache.get(uid)
                observed = await self._inspector.inspect_listed(
                    known, listed.sandboxes, listed.containers, listed_at
                )
            self._cache.put(observed)
            self._tell(uid, "relist")
        except RpcError as error:
            if uid not in self._cache.unseen:
                log.warning("pod inspection failed, will retry", uid=uid, error=str(error))
            unseen.add(uid)
        except Exception:
            if uid not in self._cache.unseen:
                log.exception("pod inspection failed, will retry", uid=uid)
            unseen.add(uid)

    async def _listen_forever(self) -> None:
        """Keep the event stream open, as long as the runtime has one."""
        retries = Retries(RECONNECT)
        while True:
            self._returned = trio.Event()
            try:
                traits = await self._ask_what_it_can()
                self._step(PlegEvent.RUNTIME_KNOWN, traits)
                if self.state is PlegState.GENERIC:
                    await self._returned.wait()
                    continue
                await self._listen(traits)
            except RpcError as error:
                if self._audit:
                    retries.reset()
                self._stream_failed(error)
            except Exception as error:
                log.exception("event stream failed, will retry")
                self._stream_failed(RpcError(Code.UNKNOWN, str(error)))
            with trio.move_on_after(retries.next_seconds()):
                await self._returned.wait()

    def runtime_returned(self) -> None:
        """The runtime was away and is back, perhaps as another version: ask it again."""
        self._returned.set()

    async def _ask_what_it_can(self) -> RuntimeTraits:
        version = await self._client.version()
        return runtime_traits(
            version.runtime_name, version.runtime_version, events_enabled=self._events_enabled
        )

    async def _listen(self, traits: RuntimeTraits) -> None:
        """Read one stream to its end. Raises RpcError; an end without one is a failure too."""
        async with self._client.container_events() as events:
            self._step(PlegEvent.STREAM_OPENED, traits)
            self.on_stream_opened.call()
            self._audit = None
            async for event in events:
                if self._audit is None:
                    self._audit = EventStreamAudit(self._clock.now_ns(), self._misses)
                    self._step(PlegEvent.FIRST_EVENT)
                self._on_event(event)
        raise RpcError(Code.UNAVAILABLE, "the event stream ended")

    def _on_event(self, event: cri.ContainerEventResponse) -> None:
        heard_at = trio.current_time()
        if event.created_at:
            self.on_event.call((self._clock.now_ns() - event.created_at) / 1e9)
        state = _EVENT_STATES.get(event.container_event_type)
        if self._audit is not None and state is not None:
            self._audit.heard((event.container_id, state), heard_at)
        uid = event.pod_sandbox_status.metadata.uid
        if not is_path_part(uid):
            # The sandbox is gone already: only the relist can tell whose it was.
            self._relist_now.set()
        elif uses_events(self.state):
            news = Announcement(event.container_id, event.container_event_type)
            if is_news(news, self._cache.get(uid)):
                self._follow_ups.start(partial(self._follow_up, uid, news, heard_at))
        self._judge()

    async def _follow_up(self, uid: str, news: Announcement, heard_at: float) -> None:
        """Look at a pod of which an event told; where that fails, the relist does."""
        try:
            await self._inspect_announced(uid, news, heard_at)
        except RpcError as error:
            log.debug("pod inspection failed, relist will retry", error=str(error))
            self._relist_now.set()
        except Exception:
            log.exception("pod inspection failed, relist will retry", uid=uid)
            self._relist_now.set()

    async def _inspect_announced(self, uid: str, news: Announcement, heard_at: float) -> None:
        """Look at a pod of which an event told, unless what it told is known since; RpcError."""
        await self._cache.wait_inspection_resumed(uid)
        async with self._inspections.share(self._cache.get(uid).namespace):
            known = self._cache.get(uid)
            if known.observed_at >= heard_at or not is_news(news, known):
                return
            observed = await self._inspector.inspect(known)
            stored = self._cache.put(observed)
        is_newest = stored.observed_at == observed.observed_at
        if is_newest and _looks_different(known, observed):
            self._tell(uid, "event")
            if uid in self._untold:
                self._relist_now.set()

    def _tell(self, uid: str, kind: str) -> None:
        """Tell the sync loop. A full channel drops: the next relist tells of the pod once more."""
        try:
            self._changes.send_nowait(PodChange(uid=uid, kind=kind))
        except trio.WouldBlock:
            self.dropped += 1
            self._untold.add(uid)
            log.warning(
                "pod lifecycle event dropped, sync loop is behind", uid=uid, dropped=self.dropped
            )

    def _tell_untold(self) -> None:
        """Tell of the changes that the channel to the sync loop had no room for."""
        untold, self._untold = self._untold, set()
        for uid in sorted(untold):
            self._tell(uid, "relist")

    def _on_observation(self, before: ObservedPod, after: ObservedPod) -> None:
        if self._audit is not None:
            self._audit.saw(before, after, trio.current_time())

    def _judge(self) -> None:
        """Take the steps that the audit has evidence for."""
        if self._audit is None or not uses_events(self.state):
            return
        if self._audit.missed(trio.current_time()):
            self._misses = self._audit.proof.misses
            self._step(PlegEvent.CHANGE_MISSED)
        elif PLEG.allows(self.state, PlegEvent.PROVEN, self._audit.proof):
            self._step(PlegEvent.PROVEN, self._audit.proof)

    def _stream_failed(self, error: RpcError) -> None:
        self._audit = None
        # A stream over a socket is open before its server says that it has none.
        if PLEG.allows(self.state, PlegEvent.STREAM_FAILED):
            self._step(PlegEvent.STREAM_FAILED, cause=error.message)
            self.on_stream_failed.call()
        if error.code is Code.UNIMPLEMENTED and PLEG.allows(self.state, PlegEvent.UNSUPPORTED):
            self._step(PlegEvent.UNSUPPORTED, cause=error.message)

    def _step(
        self, event: PlegEvent, evidence: PlegEvidence | None = None, *, cause: str = ""
    ) -> None:
        source = self.state
        if self._walk.step(event, evidence, cause=cause):
            log.info(
                "pleg state changed", source=str(source), reason=str(event), target=str(self.state)
            )
        if source is PlegState.EVENTED and self.state is not PlegState.EVENTED:
            self._trusted_age_seconds = self.seconds_since_relist()
        if relist_is_due(source, event, self.state):
            self._relist_now.set()


def _looks_different(before: ObservedPod, after: ObservedPod) -> bool:
    """True if a pod's task has anything to learn from a new observation."""
    return (before.sandboxes, before.containers) != (after.sandboxes, after.containers)
