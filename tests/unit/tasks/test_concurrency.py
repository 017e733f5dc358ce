"""Several works at once, and one error."""

import weakref
from functools import partial

import pytest
import trio
import trio.testing

from trio_kubelet.tasks.concurrency import (
    BackgroundTasks,
    run_all_for_each,
    run_and_call_if_slow,
    run_concurrently,
    run_for_each,
)


async def test_all_works_run_at_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await run_concurrently(*(partial(trio.sleep, 5) for _ in range(10)))
    assert trio.current_time() - began == 5


async def test_the_first_error_is_raised_bare_and_ends_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ended: list[str] = []

    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError("the first")

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(ValueError, match="the first"):
        await run_concurrently(hang, fail)
    assert ended == ["cancelled"]


async def test_cancelling_ends_all(autojump_clock: trio.testing.MockClock) -> None:
    with trio.move_on_after(1) as scope:
        await run_concurrently(trio.sleep_forever, trio.sleep_forever)
    assert scope.cancelled_caught


@pytest.mark.parametrize(("seconds", "calls"), [(4, 0), (6, 1), (600, 1)])
async def test_what_takes_long_is_told_of_once(
    autojump_clock: trio.testing.MockClock, seconds: float, calls: int
) -> None:
    called, began = list[float](), trio.current_time()

    async def work() -> str:
        await trio.sleep(seconds)
        return "done"

    answer = await run_and_call_if_slow(work, 5, lambda: called.append(trio.current_time()))
    assert answer == "done"
    assert trio.current_time() - began == seconds
    assert [at - began for at in called] == [5] * calls


async def test_what_fails_after_long_raises_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def work() -> None:
        await trio.sleep(6)
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        await run_and_call_if_slow(work, 5, int)


async def test_who_is_cancelled_while_it_takes_long_ends_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with trio.move_on_after(7) as scope:
        await run_and_call_if_slow(trio.sleep_forever, 5, int)
    assert scope.cancelled_caught


async def test_background_tasks_begin_with_whoever_runs_them_and_end_with_him() -> None:
    tasks, seen = BackgroundTasks(), list[str]()

    async def work(name: str) -> None:
        seen.append(name)
        try:
            await trio.sleep_forever()
        finally:
            seen.append(f"{name} ended")

    tasks.start(partial(work, "asked before"))
    await trio.testing.wait_all_tasks_blocked()
    assert seen == []
    async with trio.open_nursery() as nursery:
        await nursery.start(tasks.run)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["asked before"]
        tasks.start(partial(work, "asked meanwhile"))
        await trio.testing.wait_all_tasks_blocked()
        assert seen == ["asked before", "asked meanwhile"]
        nursery.cancel_scope.cancel()
    assert sorted(seen[2:]) == ["asked before ended", "asked meanwhile ended"]


async def test_background_tasks_keep_nothing_of_what_they_started() -> None:
    class Thing:
        async def use(self) -> None:
            """It is over at once."""

    tasks, thing = BackgroundTasks(), Thing()
    seen = weakref.ref(thing)
    async with trio.open_nursery() as nursery:
        await nursery.start(tasks.run)
        tasks.start(thing.use)
        del thing
        await trio.testing.wait_all_tasks_blocked()
        assert seen() is None
        nursery.cancel_scope.cancel()


async def test_items_are_worked_on_a_few_at_a_time_and_an_error_is_raised_as_it_is() -> None:
    busy: set[int] = set()
    most = 0

    async def work(item: int) -> None:
        nonlocal most
        busy.add(item)
        most = max(most, len(busy))
        await trio.testing.wait_all_tasks_blocked()
        busy.discard(item)

    await run_for_each(range(7), work, at_once=3)
    assert (most, busy) == (3, set())

    async def fail(item: int) -> None:
        await trio.lowlevel.checkpoint()
        if item == 4:
            raise ValueError("the fourth")

    with pytest.raises(ValueError, match="the fourth"):
        await run_for_each(range(7), fail, at_once=3)


async def test_an_error_about_one_item_keeps_no_other_from_being_worked_on() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        await trio.lowlevel.checkpoint()
        if item in (2, 3):
            raise ValueError(f"item {item}")
        done.append(item)

    with pytest.raises(ValueError, match="item 2"):
        await run_all_for_each(range(6), work, at_once=1)
    assert done == [0, 1, 4, 5]
