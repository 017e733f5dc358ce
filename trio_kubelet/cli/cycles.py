"""Python's cyclic garbage collection, so that it holds up nobody.

Python frees an object when nothing refers to it any more. Reference cycles are found by a
collection, which lets nothing go on until it has looked at all objects of its generation and of
the younger ones. Here next to nothing becomes part of a cycle: after pods of hundreds of containers
had come, been resized and gone, a collection of everything found none but those of the imports.

So the imports are set aside for good (`gc.freeze`): they are some 200,000 objects. The younger
generations are collected as Python does it, 30,000 objects at a time. The oldest one is not
collected because many objects were made, as a pod of 500 containers makes them at will, but only if
the process keeps more and more memory: if at no moment of a whole period it had less than a quarter
more than after the last such collection. Cycles that nobody needs cannot grow without end so, and
pods that come and go do not cause such a collection.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from attrs import define, field

YOUNG_OBJECTS = 10_000
"""So many are made before the youngest generation is collected."""
SEARCHES_OF_YOUNGEST = 1
"""After more than so many collections of it, the middle generation is collected, too."""
NEVER, NEXT_TIME = 2**31 - 1, 0
"""After how many collections of the middle generation the oldest is collected, too."""
OLDEST = 2

PERIOD_SECONDS = 600.0
GROWTH = 1.25


@define(eq=False)
class _OldestGeneration:
    """Decides when the oldest generation is collected; `gc` calls it at each start and stop.

    `blocks` returns the number of blocks of memory that Python's objects have, `now` the time.
    """

    _blocks: Callable[[], int] = sys.getallocatedblocks
    _now: Callable[[], float] = time.monotonic
    _kept_blocks: int = field(init=False)
    """The number that the last collection left, or a lower one since."""
    _least_blocks: int = field(init=False)
    """Of the period."""
    _period_ends_at: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._kept_blocks = self._blocks()
        self._begin_period()

    def _begin_period(self) -> None:
        self._least_blocks = self._blocks()
        self._period_ends_at = self._now() + PERIOD_SECONDS

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            return
        if info["generation"] == OLDEST:
            self._kept_blocks = self._blocks()
            _collect_oldest(NEVER)
            self._begin_period()
            return
        self._least_blocks = min(self._least_blocks, self._blocks())
        if self._now() < self._period_ends_at:
            return
        if self._least_blocks > GROWTH * self._kept_blocks:
            _collect_oldest(NEXT_TIME)
        self._kept_blocks = min(self._kept_blocks, self._least_blocks)
        self._begin_period()


def _collect_oldest(after: int) -> None:
    gc.set_threshold(YOUNG_OBJECTS, SEARCHES_OF_YOUNGEST, after)


@contextmanager
def collected_in_portions() -> Iterator[None]:
    """Collect cycles in the block, but not those of what exists when it begins."""
    before = gc.get_threshold()
    gc.freeze()
    gc.collect()  # Python waits for a quarter of what the last one of the oldest left: 0.
    oldest = _OldestGeneration()
    _collect_oldest(NEVER)
    gc.callbacks.append(oldest)
    gc.enable()
    try:
        yield
    finally:
        gc.callbacks.remove(oldest)
        gc.set_threshold(*before)
        gc.unfreeze()
