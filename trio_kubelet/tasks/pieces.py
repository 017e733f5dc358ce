"""Pieces of streams: what each has in memory while nobody reads at its other end.

A client that does not read keeps a piece for as long as it is waited for. So that many of them keep
no more than a few do, pieces are smaller the more streams there are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field


@define
class StreamPieces:
    """The size of the pieces in which bytes are passed on: the more streams, the smaller.

    A piece has at most `most` bytes and at least `least`, and between them the part of `all` that
    each stream can have.
    """

    _most: int
    _least: int
    _all: int
    _streams: int = field(init=False, default=0)

    @contextmanager
    def one_more_stream(self) -> Iterator[None]:
        """Count a stream until the end of the block."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    @property
    def size_bytes(self) -> int:
        """The most bytes that are to be read at a time."""
        share = self._all // max(1, self._streams)
        return max(self._least, min(share, self._most))
