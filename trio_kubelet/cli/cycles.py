"""Python's cyclic garbage collection, in portions that hold up nobody.

Python frees an object when nothing refers to it any more. Reference cycles are found by a
collection, which lets nothing go on until it has looked at all objects of its generation: one of
the oldest took 84 ms beside a pod of 400 containers, in whichever turn of the event loop made the
next object. Next to nothing here is part of a cycle, so what has outlived a collection of the
oldest generation is set aside (`gc.freeze`), and the next one looks at what was made since: some
60,000 objects, in 20 ms. When twice as many are set aside as the last collection of everything had
left, another one of that kind follows, and the portion after it may be a quarter as large. So
cycles that were set aside cannot grow without end, and pods that come and go cannot cause such a
collection again and again.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

YOUNG_OBJECTS = 10_000
"""So many are made before the youngest generation is collected."""
SEARCHES_OF_YOUNGER = 1
"""After more than so many collections of a generation, the next older one is collected, too."""
OLDEST = 2
"""The generation whose collection looks at all objects that are not set aside."""


class _Portions:
    """Sets objects aside; `gc` calls it at the start and the stop of each collection."""

    def __init__(self) -> None:
        gc.freeze()
        gc.collect()  # Python waits for a quarter of what the last one of the oldest left: 0.
        self._aside_at_last = gc.get_freeze_count()
        self._is_of_everything = False

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != OLDEST:
            return
        if phase == "start":
            self._is_of_everything = gc.get_freeze_count() > 2 * self._aside_at_last
            if self._is_of_everything:
                gc.unfreeze()
        else:
            gc.freeze()
            if self._is_of_everything:  # Now it counts nothing that was dead.
                self._aside_at_last = gc.get_freeze_count()


@contextmanager
def searched_in_portions() -> Iterator[None]:
    """Collect cycles, in portions, in the block. What exists when it begins is set aside."""
    before, portions = gc.get_threshold(), _Portions()
    gc.set_threshold(YOUNG_OBJECTS, SEARCHES_OF_YOUNGER, SEARCHES_OF_YOUNGER)
    gc.callbacks.append(portions)
    gc.enable()
    try:
        yield
    finally:
        gc.callbacks.remove(portions)
        gc.set_threshold(*before)
        gc.unfreeze()
