"""The frames of a watch, as they are read off the answer to the request.

Only the head of a frame is read at once, where that says enough: what it holds is decoded when
somebody wants it.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

import httpx
import trio

from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.client.api import Frame, ReceivedFrame
from trio_kubelet.k8s.client.errors import unreachable
from trio_kubelet.k8s.client.objects import FrameReader, head_of, read_frame, read_head
from trio_kubelet.k8s.kinds import Kind

T = TypeVar("T", bound=ApiType)


class WatchFrames(Generic[T]):
    """Iterates over the frames of a watch; `end` in trio's time is when it must be over."""

    __slots__ = ("_chunks", "_documents", "_end", "_kind", "_read", "_reader", "_request_name")

    def __init__(
        self,
        kind: Kind[T],
        chunks: AsyncIterator[bytes],
        request_name: str,
        end: float,
        read: Callable[[str, bytes, Callable[[], Frame[T]]], Awaitable[Frame[T]]],
    ) -> None:
        self._kind = kind
        self._read = read
        self._chunks = chunks
        self._request_name = request_name
        self._end = end
        self._reader = FrameReader()
        self._documents: deque[bytes] = deque()

    def __aiter__(self) -> "WatchFrames[T]":
        return self

    async def __anext__(self) -> ReceivedFrame[T]:
        while not self._documents:
            try:
                with trio.fail_at(self._end):
                    chunk = await anext(self._chunks)
            except trio.TooSlowError:
                raise StopAsyncIteration from None
            except httpx.RequestError as error:
                raise unreachable(error, self._request_name) from error
            self._documents.extend(self._reader.feed(chunk))
        return await self._received(self._documents.popleft())

    async def _received(self, document: bytes) -> ReceivedFrame[T]:
        """The frame of a document, which is read only where its head does not say all."""
        read = partial(read_frame, self._kind, document, self._request_name)
        head = read_head(document)
        if head is not None:
            later = partial(self._read, head.namespace, document, read)
            return ReceivedFrame(head, len(document), later)
        frame = await self._read("", document, read)

        async def again() -> Frame[T]:
            return frame

        return ReceivedFrame(head_of(frame), len(document), again)


async def abandon(chunks: AsyncIterator[bytes]) -> None:
    """Break off reading an answer from within: its iterators are nested, and each must end."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            async for _ in chunks:
                pass
        except httpx.HTTPError:
            pass
