"""The collection of reference cycles in portions, with Python's own collector."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
from attrs import define, field

from trio_kubelet.cli import cycles
from trio_kubelet.cli.cycles import collected_in_portions
from trio_kubelet.debugging.samples import count_objects

OLDEST = 2


@define(eq=False, slots=True, weakref_slot=True)
class Circle:
    """A thing that refers to itself."""

    own: "Circle" = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.own = self


@pytest.fixture
def collected() -> Iterator[list[tuple[int, int]]]:
    """The generation of each collection, and how many objects it looks at, in order."""
    found: list[tuple[int, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked_at = range(info["generation"] + 1)
            found.append((info["generation"], sum(len(gc.get_objects(each)) for each in looked_at)))

    with collected_in_portions():
        gc.callbacks.append(note)
        try:
            yield found
        finally:
            gc.callbacks.remove(note)
    gc.collect()  # Dead circles of these tests are not for those of others.


def make(count: int) -> list[list[int]]:
    """Make objects that stay."""
    return [[number] for number in range(count)]


def make_until(is_so: Callable[[], bool]) -> list[list[int]]:
    """Make objects that stay, until something is so."""
    made: list[list[int]] = []
    while not is_so():
        made += make(1_000)
        assert len(made) < 10_000_000
    return made


def make_old(circle: Circle) -> list[list[int]]:
    """Make objects that stay until a circle, which is still needed, is in the oldest generation."""
    return make_until(lambda: any(each is circle for each in gc.get_objects(OLDEST)))


@pytest.fixture
def periods_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each period end with the first collection."""
    monkeypatch.setattr(cycles, "PERIOD_SECONDS", 0.0)


def test_however_many_objects_are_made_few_are_looked_at_at_a_time(
    collected: list[tuple[int, int]],
) -> None:
    made = make(1_000_000)

    assert len(made) > 10 * max(count for _, count in collected)
    assert {generation for generation, _ in collected} == {0, 1}


def test_a_circle_that_is_soon_not_needed_is_found() -> None:
    with collected_in_portions():
        circle = weakref.ref(Circle())
        assert circle() is not None

        make_until(lambda: circle() is None)


@pytest.mark.usefixtures("periods_end", "collected")
def test_an_old_circle_is_found_when_there_is_more_and_more() -> None:
    circle = Circle()
    gone = weakref.ref(circle)
    kept = make_old(circle)
    del circle

    kept += make_until(lambda: gone() is None)


@pytest.mark.usefixtures("periods_end")
def test_old_objects_are_not_looked_at_again_and_again_if_nothing_is_added(
    collected: list[tuple[int, int]],
) -> None:
    kept = make_until(lambda: any(generation == OLDEST for generation, _ in collected))
    before = len(collected)
    for _ in range(100):
        make(len(kept) // 2)

    assert collected[before:]
    assert all(generation < OLDEST for generation, _ in collected[before:])


@pytest.mark.usefixtures("periods_end")
def test_old_circles_do_not_add_up(collected: list[tuple[int, int]]) -> None:
    made = 0
    while made < 3_000_000:
        made += len([Circle() for _ in range(100_000)])

    assert max(count for _, count in collected) < made / 3


@pytest.mark.usefixtures("collected")
def test_what_was_made_since_the_start_counts_among_the_objects_of_the_process() -> None:
    circle = Circle()
    kept = make_old(circle)
    kinds = {each.kind: each.count for each in count_objects()}

    assert kinds[f"{Circle.__module__}.Circle"] == 1
    assert kinds["builtins.list"] >= len(kept)
    assert circle.own is circle
