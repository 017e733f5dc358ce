"""Lines that readers of logs hold until their ends come, bounded in all.

A line that a runtime writes has 16 KiB, but who may write to the files of his logs writes lines
without an end, and follows them as often as he likes. When all readers together hold too much, the
longest line goes of the namespace that holds the most: that line is left out up to its end, as one
is that is too long by itself.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from attrs import field, frozen

from trio_kubelet.logs.lines import LogLines

log = structlog.get_logger("logs")

MAX_HELD_BYTES = 8 * 1024 * 1024
"""Of all readers but those few whose next piece is being read."""


@frozen
class PartialLines:
    """Owner of the room for lines that have begun, by the namespaces of those who hold them."""

    _held: dict[LogLines, str] = field(init=False, factory=dict)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)
    """Pieces are read in threads; a line that is left out meanwhile would come back."""

    @contextmanager
    def reading(self, lines: LogLines, namespace: str) -> Iterator[None]:
        """Read a piece in the block: what is held is left alone meanwhile. Called in a thread."""
        self.forget(lines)
        yield
        if lines.partial_bytes:
            with self._lock:
                self._held[lines] = namespace
                self._make_room()

    def forget(self, lines: LogLines) -> None:
        """Count what a reader holds no more."""
        with self._lock:
            self._held.pop(lines, None)

    def _make_room(self) -> None:
        while sum(lines.partial_bytes for lines in self._held) > MAX_HELD_BYTES:
            of_namespace = Counter[str]()
            for lines, namespace in self._held.items():
                of_namespace[namespace] += lines.partial_bytes
            ((most, held_bytes),) = of_namespace.most_common(1)
            own = (lines for lines, namespace in self._held.items() if namespace == most)
            longest = max(own, key=lambda lines: lines.partial_bytes)
            log.warning("log line left out, too much is held", of=most, held_bytes=held_bytes)
            longest.leave_out()
            del self._held[longest]
