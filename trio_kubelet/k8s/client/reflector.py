"""List and watch, for ever: a reflection of what the API server has.

It begins with a streaming list, or where the server has none with a list in pages; then a watch
goes on from there, and again from where it ended. A version that the server has forgotten (410)
leads back to the list. Lists ask for the current state, never for a cached one, so that none is
older than what the consumer knows. What it is told is up to `Deltas`. A server that was away is
asked again as soon as anybody has found it back (`Recovery`).
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import chain
from typing import Any, Generic, NoReturn, TypeVar

import structlog
import trio
from attrs import asdict, define, field

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client.api import (
    EVERYTHING,
    Api,
    FrameHead,
    FrameType,
    ListSynced,
    ReceivedFrame,
    Selection,
    UndecodableObject,
    WatchEvent,
    metadata_of,
)
from trio_kubelet.k8s.client.deltas import Deltas
from trio_kubelet.k8s.client.errors import ApiError
from trio_kubelet.k8s.client.read_ahead import ReadAhead
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.tasks.retries import Retries

T = TypeVar("T", bound=ApiType)

OnEvent = Callable[[WatchEvent[T]], Awaitable[None]]

PAGE_LIMIT = 50
"""Objects a page, which is read in one piece: each may have a megabyte. With a field selector all
come at once: they are few, and servers older than 1.34 answer pages from etcd, where they have to
read the objects of all nodes."""

WATCH_SECONDS = (300, 600)
"""A watch lasts a random time in between, so that those of many nodes do not end together."""

INITIAL_SILENCE_SECONDS = 30.0
"""A streaming list that pauses for so long comes from a server that has none."""

SHORT_WATCH_SECONDS = 1.0
"""A watch that ends so soon, though in good order, is not opened again at once."""

QUIET_SECONDS = 5.0
"""So long a refusal for lack of rights is not logged: see RETRY_FORBIDDEN."""

RETRY = BackoffPolicy(initial_seconds=0.8, cap_seconds=15.0, jitter=1.0)
RETRY_FORBIDDEN = BackoffPolicy(initial_seconds=0.1, cap_seconds=15.0, jitter=1.0)
"""The Node authorizer learns of a pod's secrets a moment after the node does."""

_NO_STREAMING = frozenset({400, 405, 406, 422})
_RESUMABLE = frozenset({0, 429, 503})

log = structlog.get_logger()


async def reflect(
    client: Api,
    kind: Kind[T],
    on_event: OnEvent[T],
    selection: Selection = EVERYTHING,
    *,
    rng: random.Random | None = None,
) -> NoReturn:
    """Call `on_event` with all that happens to the selected objects, until cancelled.

    `ObjectChanged` and `ObjectRemoved` tell each object's versions in order and once; `ListSynced`
    comes after each complete list, the first and later ones, when the removal of what vanished in
    a gap has been told. Failures are waited out with growing pauses, and logged. What `on_event`
    raises is a bug that one object brings out: it is logged with the object's name, and the others
    go on.
    """
    rng = rng or random.Random()  # noqa: S311  jitter is no secret
    await _Reflection(client, kind, on_event, selection, rng, Retries(RETRY, rng.random)).run()


@define(eq=False)
class _Reflection(Generic[T]):
    client: Api
    kind: Kind[T]
    on_event: OnEvent[T]
    selection: Selection
    rng: random.Random
    retries: Retries
    deltas: Deltas[T] = field(factory=Deltas)
    streams: bool = True
    is_answered: bool = False
    is_cut_off: bool = False
    failing_since: float | None = None
    announced: bool = False

    async def run(self) -> NoReturn:
        while True:
            pause = 0.0
            began = trio.current_time()
            back = self.client.recovery.next
            self.is_answered = False
            try:
                await self._one_pass()
                if trio.current_time() - began < SHORT_WATCH_SECONDS:
                    pause = self.retries.next_seconds()
            except ApiError as error:
                if not error.is_unreachable:
                    self._has_answer()
                pause = self._pause_after(error)
                if not self.is_answered:
                    self.is_cut_off = True
                    pause = await self._pause_when_back(back, pause)
            except Exception:
                log.exception("watch failed, will retry", **self._facts())
                self.deltas.begin_list()
                pause = self.retries.next_seconds()
            await trio.sleep(pause)

    async def _one_pass(self) -> None:
        """List and watch, or watch on; returns when a watch has ended in good order."""
        if self.deltas.resource_version:
            await self._watch()
            return
        if self.streams and await self._streaming_list():
            return
        await self._list()
        await self._watch()

    async def _streaming_list(self) -> bool:
        """List and watch in one; False if this takes another way of listing."""
        self.deltas.begin_list()
        try:
            await self._watch(send_initial_events=True)
        except ApiError as error:
            refused = error.code in _NO_STREAMING or error.is_forbidden
            if not self.deltas.is_listing or not refused:
                raise
            self.streams = error.code not in _NO_STREAMING
        return not self.deltas.is_listing

    async def _watch(self, *, send_initial_events: bool = False) -> None:
        """Hand out frames until the watch ends, or turns out to be no streaming list.

        Those of a list come in their order, all others in turns.
        """
        async with self.client.watch(
            self.kind,
            self.selection,
            resource_version=self.deltas.resource_version,
            send_initial_events=send_initial_events,
            timeout_seconds=self.rng.randint(*WATCH_SECONDS),
        ) as frames:
            self._has_answer()
            if self.deltas.is_listing:
                await self._first_part(frames)
            if not self.deltas.is_listing:
                await ReadAhead(frames, self._accepts, self._take).run()

    async def _first_part(self, frames: AsyncIterator[ReceivedFrame[T]]) -> None:
        """Hand out what a streaming list begins with, up to its end, or that of the watch."""
        while self.deltas.is_listing:
            received: ReceivedFrame[T] | None = None
            with trio.move_on_after(INITIAL_SILENCE_SECONDS):
                received = await anext(frames, None)
            if received is None:
                return
            frame = await received.read()
            if frame.object is None and not frame.initial_events_end:
                self.streams = False  # a bookmark like any other: the server knows no better
                return
            await self._hand_out(self.deltas.take(frame))
        self._is_healthy()

    def _accepts(self, head: FrameHead) -> bool:
        self._is_healthy()
        return self.deltas.arrives(head.resource_version) and head.type is not FrameType.BOOKMARK

    async def _take(self, received: ReceivedFrame[T]) -> None:
        await self._hand_out(self.deltas.take(await received.read()))

    async def _list(self) -> None:
        """List in pages, and in one piece if the pages expire under way."""
        limit = 0 if self.selection.fields else PAGE_LIMIT
        try:
            await self._list_pages(limit)
        except ApiError as error:
            if not error.is_gone:
                raise
            await self._list_pages(0)
        self._is_healthy()

    async def _list_pages(self, limit: int) -> None:
        self.deltas.begin_list()
        continue_ = ""
        while True:
            page = await self.client.list(
                self.kind, self.selection, limit=limit, continue_=continue_
            )
            self._has_answer()
            items: Iterable[T | UndecodableObject] = chain(page.items, page.undecodable)
            for item in items:
                await self._hand_out(self.deltas.listed(item))
            if not page.continue_:
                break
            continue_ = page.continue_
        await self._hand_out(self.deltas.end_list(page.resource_version))

    async def _hand_out(self, events: Iterable[WatchEvent[T]]) -> None:
        """Let the consumer take events; what one object does to it costs the others nothing.

        A consumer that cannot take the end of a list would wait for it forever: that is raised,
        and everything is listed anew.
        """
        for event in events:
            if isinstance(event, ListSynced):
                await self.on_event(event)
                continue
            try:
                await self.on_event(event)
            except Exception:
                log.exception("watch handler failed", **self._facts(), object=_name(event))

    def _pause_after(self, error: ApiError) -> float:
        """Decide whether a list is needed; returns the seconds to wait."""
        if error.code not in _RESUMABLE:
            self.deltas.begin_list()
        self._complain(error)
        return self.retries.next_seconds(
            at_least=error.retry_after_seconds,
            policy=RETRY_FORBIDDEN if error.is_forbidden else RETRY,
        )

    async def _pause_when_back(self, back: trio.Event, seconds: float) -> float:
        """Wait for the server's return, at most so long; returns the seconds to wait after it.

        These are those of a first failure: hundreds wait for the return and must not come at once.
        """
        with trio.move_on_after(seconds):
            await back.wait()
            self.retries.reset()
            return self.retries.next_seconds()
        return 0.0

    def _has_answer(self) -> None:
        """The server is there: nobody need wait for its return.

        It may refuse all at first, until it has read who has which rights: that is not waited out
        as if it had refused all the time that it was away.
        """
        self.is_answered = True
        if self.is_cut_off:
            self.is_cut_off = False
            self.retries.reset()
            self.client.recovery.tell()

    def _complain(self, error: ApiError) -> None:
        """Log a failure once, until all is well again.

        That the server is away need not be told by each of hundreds of single objects.
        """
        now = trio.current_time()
        if self.failing_since is None:
            self.failing_since = now
        one_of_many = self.selection.fields.startswith("metadata.name=")
        quiet = (
            error.is_gone
            or (error.is_unreachable and one_of_many)
            or (error.is_forbidden and now - self.failing_since < QUIET_SECONDS)
        )
        write = log.debug if self.announced or quiet else log.info
        self.announced = self.announced or not quiet
        write("watch failed, will retry", **self._facts(), error=str(error))

    def _is_healthy(self) -> None:
        self.retries.reset()
        if self.announced and self.failing_since is not None:
            seconds = round(trio.current_time() - self.failing_since, 1)
            log.info("watch resumed", **self._facts(), after_seconds=seconds)
        self.failing_since = None
        self.announced = False

    def _facts(self) -> dict[str, Any]:
        given = {name: value for name, value in asdict(self.selection).items() if value}
        return {"resource": self.kind.resource, **given}


def _name(event: WatchEvent[Any]) -> str:
    if isinstance(event, ListSynced):
        return ""
    metadata = metadata_of(event.object)
    return f"{metadata.namespace}/{metadata.name}".lstrip("/")
