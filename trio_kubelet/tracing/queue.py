"""Spans that have ended and wait to be sent: so many, and no more."""

from collections import deque

import trio

from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tracing.tracer import Span

MOST_SPANS = 2048
BATCH_SPANS = 512


class SpanQueue:
    """Takes spans without waiting; `on_dropped` is told how many were lost."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()
        self._enough = trio.Event()
        self._is_closed = False
        self.on_dropped: Callbacks[[int]] = Callbacks()

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def is_over(self) -> bool:
        """True if it was closed and all was taken."""
        return self._is_closed and not self._spans

    def close(self) -> None:
        """Have what there is taken without waiting for more."""
        self._is_closed = True
        self._enough.set()

    def put(self, span: Span) -> None:
        """Take a span, or drop it where there are too many."""
        if len(self._spans) >= MOST_SPANS:
            self.on_dropped.call(1)
            return
        self._spans.append(span)
        if len(self._spans) >= BATCH_SPANS:
            self._enough.set()

    async def take(self, seconds: float) -> list[Span]:
        """Wait so long, or until there are many; return as many as are sent at once."""
        with trio.move_on_after(seconds):
            await self._enough.wait()
        batch = [self._spans.popleft() for _ in range(min(BATCH_SPANS, len(self._spans)))]
        if len(self._spans) < BATCH_SPANS and self._enough.is_set() and not self._is_closed:
            self._enough = trio.Event()
        return batch
