"""Python's search for dead objects in circles, in portions that hold up nobody.

Python frees an object when nothing refers to it any more. Objects that refer to each other in a
circle are found by a search, which lets nothing go on until it has looked at all that may be part
of one: it took 84 ms beside a pod of 400 containers, in whichever turn of the event loop made the
next object. Next to nothing here is part of a circle, so what has outlived the last kind of search
is set aside (`gc.freeze`), and the next one looks at what was made since: some 60,000 objects, in
20 ms. When twice as many are set aside as at the last search through everything, such a search
follows, and the portion after it may be a quarter as large. So circles that were set aside cannot
grow without end, and pods that come and go cannot cause such a search again and again.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

YOUNG_OBJECTS = 10_000
"""So many are made before Python searches them."""
SEARCHES_OF_YOUNGER = 1
"""After more than so many, the next search is through those that outlived them, too."""
OLDEST = 2
"""The generation of objects whose search looks at all that is not set aside."""


class _Portions:
    """Sets objects aside; `gc` calls it at the start and the stop of each search."""

    def __init__(self) -> None:
        gc.freeze()
        gc.collect()  # Python waits for a quarter of what the last search of the oldest left: 0.
        self._most_aside = gc.get_freeze_count()

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != OLDEST:
            return
        if phase == "start":
            aside = gc.get_freeze_count()
            if aside > 2 * self._most_aside:
                self._most_aside = aside
                gc.unfreeze()
        else:
            gc.freeze()


@contextmanager
def searched_in_portions() -> Iterator[None]:
    """Search for circles, in portions, in the block. What exists when it begins is set aside."""
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
