"""The search for dead objects in circles, in portions, with Python's own search."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
from attrs import define, field

from trio_kubelet.cli.cycles import searched_in_portions
from trio_kubelet.debugging.samples import count_objects


@define(eq=False, slots=True, weakref_slot=True)
class Circle:
    """A thing that refers to itself."""

    own: "Circle" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.own = self


@pytest.fixture
def searched() -> Iterator[list[int]]:
    """The number of objects that each search of the oldest began with, in order."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    with searched_in_portions():
        gc.callbacks.append(note)
        try:
            yield found
        finally:
            gc.callbacks.remove(note)
    gc.collect()  # Dead circles of these tests are not for those of others.


def make_until(is_so: Callable[[], bool]) -> list[list[int]]:
    """Make objects that stay, until something is so."""
    made: list[list[int]] = []
    while not is_so():
        made += [[number] for number in range(1_000)]
        assert len(made) < 5_000_000
    return made


def test_a_search_looks_at_what_was_made_since_the_last(searched: list[int]) -> None:
    made = make_until(lambda: len(searched) >= 2)

    assert len(made) > max(searched)
    assert max(searched) < 80_000


def test_a_circle_of_the_portion_is_found(searched: list[int]) -> None:
    circle = weakref.ref(Circle())
    assert circle() is not None

    make_until(lambda: circle() is None)


def test_a_circle_that_was_set_aside_is_found_when_twice_as_much_is(searched: list[int]) -> None:
    circle = Circle()
    gone = weakref.ref(circle)
    kept = make_until(lambda: len(searched) >= 2)
    del circle
    assert gone() is not None

    kept += make_until(lambda: gone() is None)

    assert searched[-1] > len(kept)


def test_circles_that_are_set_aside_again_and_again_do_not_add_up(searched: list[int]) -> None:
    at_first = gc.get_freeze_count()

    def searches_of_everything() -> list[int]:
        return [count for count in searched if count > at_first]

    made = 0
    while len(searches_of_everything()) < 3:
        before = len(searched)
        circles: list[Circle] = []
        while len(searched) == before:
            circles += [Circle() for _ in range(1_000)]
        made += len(circles)
        assert made < 50 * at_first

    first, _, third = searches_of_everything()
    assert third < 1.5 * first


def test_what_was_set_aside_counts_among_the_objects_of_the_process() -> None:
    circle = Circle()
    with searched_in_portions():
        kinds = {each.kind: each.count for each in count_objects()}
        aside = gc.get_freeze_count()

    assert kinds[f"{Circle.__module__}.Circle"] == 1
    assert aside > 0
    assert circle.own is circle
