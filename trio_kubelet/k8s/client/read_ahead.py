"""The frames of a watch, read ahead and handed out in turns of namespaces.

A watch brings the objects of all namespaces one after another, and to decode one of a megabyte
takes 20 ms and more. In the order of their arrival those of one tenant, who changes such an object
fifty times a second, would take the processor, and everybody else's would come late. So frames are
read as they arrive, but not decoded: of the versions of an object that wait only the last one is
handed out, namespaces take turns, and one that has had its share waits.

A removal waits for nobody, nor does the version before it: what is admitted later may need the
room that it leaves. An object that came and went before its turn is not told of at all, so nobody
gets more than a share by making and deleting objects. The versions of one object, and its
incarnations, keep their order.
"""

import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio
from attrs import define, field

from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client.api import FrameHead, FrameType, ReceivedFrame
from trio_kubelet.k8s.client.errors import ApiError
from trio_kubelet.tasks.concurrency import run_concurrently
from trio_kubelet.tasks.turns import TurnQueue

T = TypeVar("T", bound=ApiType)

MOST_BYTES = 16 << 20
"""Of the frames that wait. When there are more, nobody waits for a share, and less is read."""

SHARE_BYTES_PER_SECOND = 2 << 20
SHARE_BYTES_AT_ONCE = 16 << 20
LEAST_BYTES = 16 << 10
"""Of the frames of a namespace; a small frame counts as so many, for what follows from it."""


class Shares:
    """The bytes that each namespace has had of its share; it fills up as time passes."""

    def __init__(self) -> None:
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """The bytes that were left, less than 0 for a debt, and when; the oldest time first."""

    def take(self, namespace: Hashable, size_bytes: int, now: float) -> None:
        """The namespace has had so many bytes."""
        left = self._at(namespace, now) - max(size_bytes, LEAST_BYTES)
        self._left[namespace] = left, now
        self._left.move_to_end(namespace)
        self._forget_the_full(now)

    def free_at(self, namespace: Hashable) -> float:
        """The time from which the namespace may have some again."""
        left, at = self._left.get(namespace, (0.0, -math.inf))
        return at - min(left, 0.0) / SHARE_BYTES_PER_SECOND

    def _at(self, namespace: Hashable, now: float) -> float:
        left, at = self._left.get(namespace, (SHARE_BYTES_AT_ONCE, now))
        return min(SHARE_BYTES_AT_ONCE, left + (now - at) * SHARE_BYTES_PER_SECOND)

    def _forget_the_full(self, now: float) -> None:
        while True:
            oldest = next(iter(self._left))
            if self._at(oldest, now) < SHARE_BYTES_AT_ONCE:
                return
            del self._left[oldest]


_Key = tuple[str, str]
"""Namespace and name of an object."""


class WaitingFrames(Generic[T]):
    """The frames that were read and not handed out; pure. Times are trio's."""

    def __init__(self) -> None:
        self._newest: dict[_Key, ReceivedFrame[T]] = {}
        """The last version of each object that waits for a turn."""

        self._unseen: set[_Key] = set()
        """Those of them that have come since the watch began, and of which nothing was told."""

        self._turns = TurnQueue[_Key]()
        self._at_once: deque[ReceivedFrame[T]] = deque()
        """Removals, and what has to come before them."""

        self._shares = Shares()
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._at_once or self._turns)

    @property
    def is_full(self) -> bool:
        """True if nothing is to be read until something was handed out."""
        return self._size_bytes >= MOST_BYTES

    def put(self, frame: ReceivedFrame[T]) -> None:
        """Let a version of an object wait, in the place of the one that it supersedes."""
        head = frame.head
        key = head.namespace, head.name
        self._size_bytes += frame.size_bytes
        older = self._newest.get(key)
        removes = head.type is FrameType.DELETED
        if older is not None and not removes and older.head.uid == head.uid:
            self._size_bytes -= older.size_bytes
            self._newest[key] = frame
            return
        if older is not None:
            self._turns.remove(head.namespace, key)
            del self._newest[key]
            if removes and older.head.uid == head.uid and key in self._unseen:
                self._unseen.discard(key)
                self._size_bytes -= older.size_bytes + frame.size_bytes
                return
            self._at_once.append(older)
            self._unseen.discard(key)
        if removes:
            self._at_once.append(frame)
            return
        self._newest[key] = frame
        self._turns.put(head.namespace, key)
        if head.type is FrameType.ADDED and older is None:
            self._unseen.add(key)

    def take(self, now: float, *, unshared: bool = False) -> ReceivedFrame[T] | None:
        """Take the frame whose turn it is, if there is one; `unshared`: whatever they have had."""
        unshared = unshared or self.is_full
        if self._at_once:
            frame = self._at_once.popleft()
        else:
            key = self._turns.take_if(lambda each: unshared or self._shares.free_at(each) <= now)
            if key is None:
                return None
            frame = self._newest.pop(key)
            self._unseen.discard(key)
        self._size_bytes -= frame.size_bytes
        self._shares.take(frame.head.namespace, frame.size_bytes, now)
        return frame

    @property
    def next_at(self) -> float:
        """The time at which a frame that waits may be handed out; infinity if none waits."""
        return min((self._shares.free_at(each) for each in self._turns.owners), default=math.inf)


@define(eq=False)
class ReadAhead(Generic[T]):
    """Reads a watch. `accepts` is asked of each frame as it arrives, `hand_out` takes those."""

    _frames: AsyncIterator[ReceivedFrame[T]]
    _accepts: Callable[[FrameHead], bool]
    _hand_out: Callable[[ReceivedFrame[T]], Awaitable[None]]
    _waiting: WaitingFrames[T] = field(init=False, factory=WaitingFrames)
    _has_ended: bool = field(init=False, default=False)
    _changed: trio.Event = field(init=False, factory=trio.Event)

    async def run(self) -> None:
        """Return when the watch has ended and all of it was handed out.

        Raises the ApiError that ended it, after that; at once what `hand_out` raises. That, and
        cancelling, drops what waits.
        """
        errors: list[ApiError] = []

        async def read() -> None:
            try:
                await self._read()
            except ApiError as error:
                errors.append(error)
            self._has_ended = True
            self._change()

        await run_concurrently(read, self._hand_out_all)
        if errors:
            raise errors[0]

    async def _read(self) -> None:
        async for frame in self._frames:
            if not self._accepts(frame.head):
                continue
            self._waiting.put(frame)
            self._change()
            while self._waiting.is_full:
                await self._changed.wait()

    async def _hand_out_all(self) -> None:
        while True:
            frame = self._waiting.take(trio.current_time(), unshared=self._has_ended)
            if frame is not None:
                self._change()
                await self._hand_out(frame)
            elif self._has_ended:
                return
            else:
                with trio.move_on_at(self._waiting.next_at):
                    await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
