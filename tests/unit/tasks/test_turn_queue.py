"""Who is next, where owners take turns."""

import pytest

from trio_kubelet.tasks.turns import TurnQueue


def of(*items: str) -> TurnQueue[str]:
    """A queue of items whose owners are their first letters."""
    queue = TurnQueue[str]()
    for item in items:
        queue.put(item[0], item)
    return queue


def all_of(queue: TurnQueue[str]) -> list[str]:
    taken = []
    while queue:
        taken.append(queue.take())
    return taken


def test_owners_take_turns_and_the_oldest_of_each_goes_first() -> None:
    assert all_of(of("a1", "a2", "a3", "b1", "c1", "b2")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_owner_that_had_its_turn_is_behind_one_that_comes() -> None:
    queue = of("a1", "a2", "a3")
    assert queue.take() == "a1"
    queue.put("b", "b1")
    assert all_of(queue) == ["a2", "b1", "a3"]


def test_what_is_put_again_waits_once_and_what_is_removed_is_not_taken() -> None:
    queue = of("a1", "a2", "a1", "b1")
    queue.remove("a", "a2")
    queue.remove("b", "b1")
    assert all_of(queue) == ["a1"]


def test_nothing_can_be_taken_that_does_not_wait() -> None:
    queue = of("a1")
    with pytest.raises(KeyError):
        queue.remove("a", "a2")
    assert queue.take() == "a1"
    with pytest.raises(KeyError):
        queue.take()
