"""Who gets the next slot."""

import trio
import trio.testing

from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.start_limiter import HELD_SECONDS, Precedence, StartLimiter


async def test_no_more_than_the_slots_are_held_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, held, most = StartLimiter(3), 0, 0

    async def work() -> None:
        nonlocal held, most
        async with slots.slot(Precedence.SANDBOX, "ns"):
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
        async with slots.slot(precedence, "ns"):
            order.append(name)

    async with trio.open_nursery() as nursery, slots.slot(Precedence.SANDBOX, "ns"):
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
    async with slots.slot(Precedence.SANDBOX, "ns"):
        with trio.move_on_after(1):
            async with slots.slot(Precedence.SANDBOX, "ns"):
                raise AssertionError("there was no slot")
    with trio.fail_after(1):
        async with slots.slot(Precedence.SANDBOX, "ns"):
            pass


async def test_a_slot_given_to_someone_who_is_cancelled_goes_to_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots = StartLimiter(1)
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            async with slots.slot(Precedence.SANDBOX, "ns"):
                raise AssertionError("cancelled before it ran")

    async with trio.open_nursery() as nursery:
        async with slots.slot(Precedence.SANDBOX, "ns"):
            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        with trio.fail_after(1):
            async with slots.slot(Precedence.SANDBOX, "ns"):
                pass


async def test_who_holds_a_slot_starts_something(autojump_clock: trio.testing.MockClock) -> None:
    activity = Activity()
    slots, began = StartLimiter(1, activity), trio.current_time()

    async def start() -> None:
        async with slots.slot(Precedence.SANDBOX, "ns"):
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked()
        await activity.wait_idle(1)
    assert trio.current_time() - began == 11


async def test_namespaces_take_turns_however_many_one_of_them_starts() -> None:
    slots, order = StartLimiter(1), []

    async def work(namespace: str) -> None:
        async with slots.slot(Precedence.SANDBOX, namespace):
            order.append(namespace)

    async with trio.open_nursery() as nursery, slots.slot(Precedence.SANDBOX, "many"):
        for namespace in (*["many"] * 20, "one", "other"):
            nursery.start_soon(work, namespace)
            await trio.testing.wait_all_tasks_blocked()
    assert order[:4] == ["many", "one", "other", "many"]


async def test_what_hangs_keeps_its_slot_for_a_while_and_goes_on_without(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slots, began, ended = StartLimiter(2), trio.current_time(), list[float]()

    async def hang(seconds: float) -> None:
        async with slots.slot(Precedence.SANDBOX, "hangs"):
            await trio.sleep(seconds)
        ended.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hang, 60)
        await trio.testing.wait_all_tasks_blocked()
        held = list[float]()
        for _ in range(3):
            async with slots.slot(Precedence.SANDBOX, "good"):
                held.append(trio.current_time() - began)
        nursery.start_soon(hang, 1)
        await trio.testing.wait_all_tasks_blocked()
    assert held == [HELD_SECONDS] * 3
    assert ended == [HELD_SECONDS + 1, 60, 60]
    async with trio.open_nursery() as nursery:  # There are as many as before.
        for _ in range(3):
            nursery.start_soon(hang, 1)
    assert ended[3:] == [61, 61, 62]
