"""Whose turn it is to remove what a dead pod left."""

import trio
import trio.testing
from trio.testing import MockClock

from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.sync.cleaning import (
    LONGEST_SECONDS,
    PODS_OF_NAMESPACE,
    QUIET_SECONDS,
    CleaningTurns,
)

NO_HURRY = trio.Event
NAMESPACE = "shop"


async def test_no_more_than_a_few_pods_are_cleaned_at_once(autojump_clock: MockClock) -> None:
    turns, now, most = CleaningTurns(Activity().wait_idle), 0, 0

    async def clean() -> None:
        nonlocal now, most
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            now += 1
            most = max(most, now)
            await trio.sleep(1)
            now -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(clean)
    assert most == PODS_OF_NAMESPACE


async def test_pods_of_one_namespace_leave_turns_to_those_of_others(
    autojump_clock: MockClock,
) -> None:
    turns = CleaningTurns(Activity().wait_idle)

    async def clean_for_long() -> None:
        async with turns.turn("hostile", NO_HURRY(), trio.current_time()):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(clean_for_long)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(LONGEST_SECONDS):
            async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
                pass
        nursery.cancel_scope.cancel()


async def test_who_was_released_first_is_cleaned_first(autojump_clock: MockClock) -> None:
    turns, order = CleaningTurns(Activity().wait_idle, pods_at_once=1), list[int]()

    async def clean(number: int) -> None:
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            order.append(number)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for number in range(7):
            nursery.start_soon(clean, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order == list(range(7))


async def test_no_turn_begins_while_something_is_started_or_stopped(
    autojump_clock: MockClock,
) -> None:
    activity, began = Activity(), trio.current_time()
    turns, times = CleaningTurns(activity.wait_idle, pods_at_once=1), list[float]()

    async def clean() -> None:
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            times.append(trio.current_time() - began)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        with activity.busy():
            nursery.start_soon(clean)
            nursery.start_soon(clean)
            await trio.sleep(5)
        await trio.sleep(QUIET_SECONDS + 0.5)
        with activity.busy():  # in the middle of the first turn
            await trio.sleep(5)
    assert times == [5 + QUIET_SECONDS, 10.5 + 2 * QUIET_SECONDS]


async def test_on_a_node_that_is_never_quiet_every_turn_comes_all_the_same(
    autojump_clock: MockClock,
) -> None:
    activity, began = Activity(), trio.current_time()
    turns = CleaningTurns(activity.wait_idle, pods_at_once=1)

    async def clean() -> None:
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            await trio.sleep(1)

    async def be_busy() -> None:
        while True:
            with activity.busy():
                await trio.sleep(1)

    async with trio.open_nursery() as busy:
        busy.start_soon(be_busy)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(clean)
        busy.cancel_scope.cancel()
    assert trio.current_time() - began == LONGEST_SECONDS + 5


async def test_who_is_in_a_hurry_goes_at_once_whatever_happens(autojump_clock: MockClock) -> None:
    activity, began = Activity(), trio.current_time()
    turns, hurry = CleaningTurns(activity.wait_idle, pods_at_once=1), trio.Event()

    async def wait_for_a_lull() -> None:
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            pass

    async def clean() -> None:
        async with turns.turn(NAMESPACE, hurry, trio.current_time()):
            assert trio.current_time() - began == 2

    with activity.busy():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_a_lull)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(clean)
            await trio.sleep(2)
            hurry.set()


async def test_who_gives_up_waiting_holds_no_turn(autojump_clock: MockClock) -> None:
    activity = Activity()
    turns = CleaningTurns(activity.wait_idle, pods_at_once=1)
    with activity.busy(), trio.move_on_after(1):
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            raise AssertionError("it was not quiet")
    with trio.fail_after(QUIET_SECONDS + 1):
        async with turns.turn(NAMESPACE, NO_HURRY(), trio.current_time()):
            pass
