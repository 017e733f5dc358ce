"""Who gets the next slot."""

import trio
import trio.testing

from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.start_limiter import Precedence, StartLimiter


async def test_no_more_than_the_slots_are_held_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, held, most = StartLimiter(3), 0, 0

    async def work() -> None:
        nonlocal held, most
        async with slots.slot(Precedence.SANDBOX):
            held += 1
            most = max(most, held)
            await trio.sleep(1)
            held -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(work)
    assert most == 3


async def test_the_nearly_done_go_first_then_those_that_waited_longest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, order = StartLimiter(1), []

    async def work(name: str, precedence: Precedence) -> None:
        async with slots.slot(precedence):
            order.append(name)

    async with trio.open_nursery() as nursery, slots.slot(Precedence.SANDBOX):
        for name, precedence in (
            ("sandbox 1", Precedence.SANDBOX),
            ("sandbox 2", Precedence.SANDBOX),
            ("container", Precedence.CONTAINER),
            ("static sandbox", Precedence.STATIC_SANDBOX),
            ("static container", Precedence.STATIC_CONTAINER),
        ):
            nursery.start_soon(work, name, precedence)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["static container", "container", "static sandbox", "sandbox 1", "sandbox 2"]


async def test_who_gives_up_waiting_holds_nothing(autojump_clock: trio.testing.MockClock) -> None:
    slots = StartLimiter(1)
    async with slots.slot(Precedence.SANDBOX):
        with trio.move_on_after(1):
            async with slots.slot(Precedence.SANDBOX):
                raise AssertionError("there was no slot")
    with trio.fail_after(1):
        async with slots.slot(Precedence.SANDBOX):
            pass


async def test_a_slot_given_to_someone_who_is_cancelled_goes_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots = StartLimiter(1)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            async with slots.slot(Precedence.SANDBOX):
                raise AssertionError("cancelled before it ran")

    async with trio.open_nursery() as nursery:
        async with slots.slot(Precedence.SANDBOX):
            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        with trio.fail_after(1):
            async with slots.slot(Precedence.SANDBOX):
                pass


async def test_who_holds_a_slot_starts_something(autojump_clock: trio.testing.MockClock) -> None:
    activity = Activity()
    slots, began = StartLimiter(1, activity), trio.current_time()

    async def start() -> None:
        async with slots.slot(Precedence.SANDBOX):
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked()
        await activity.wait_idle(1)
    assert trio.current_time() - began == 11
