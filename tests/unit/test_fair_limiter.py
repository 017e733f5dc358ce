"""Slots that are shared by keys: nobody's queue stands before everybody else's."""

import threading
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_kubelet.fair_limiter import FairLimiter


async def hold(limiter: FairLimiter, key: str, name: str, order: list[str]) -> None:
    async with limiter.share(key):
        order.append(name)
        await trio.lowlevel.checkpoint()


async def test_keys_that_wait_take_turns() -> None:
    limiter = FairLimiter(slots=1, slots_of_key=1)
    order: list[str] = []
    async with trio.open_nursery() as nursery, limiter.share("other"):
        for key, count in (("a", 3), ("b", 1), ("c", 2)):
            for number in range(count):
                nursery.start_soon(hold, limiter, key, f"{key}{number}", order)
                await wait_all_tasks_blocked()
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert limiter.held == 0


async def test_a_key_has_no_more_than_its_slots() -> None:
    limiter = FairLimiter(slots=3, slots_of_key=2)
    order: list[str] = []
    async with limiter.share("a"), trio.open_nursery() as nursery:
        nursery.start_soon(hold_until, limiter, "a", release := trio.Event())
        await wait_all_tasks_blocked()
        nursery.start_soon(hold, limiter, "a", "third of a", order)
        await wait_all_tasks_blocked()
        assert not order
        nursery.start_soon(hold, limiter, "b", "b", order)
        await wait_all_tasks_blocked()
        assert order == ["b"]
        release.set()
    assert order == ["b", "third of a"]


async def hold_until(limiter: FairLimiter, key: str, release: trio.Event) -> None:
    async with limiter.share(key):
        await release.wait()


async def test_a_cancelled_wait_takes_nothing_and_leaves_the_turn_to_others() -> None:
    limiter = FairLimiter(slots=1, slots_of_key=1)
    order: list[str] = []
    async with trio.open_nursery() as nursery, limiter.share("other"):
        with trio.CancelScope() as scope:
            nursery.start_soon(partial(hold, limiter, "b", "b", order))
            scope.cancel()
            await hold(limiter, "a", "a", order)
    assert order == ["b"]
    assert limiter.held == 0


async def test_an_abandoned_thread_holds_its_slot_until_it_is_through() -> None:
    limiter = FairLimiter(slots=2, slots_of_key=1)
    begun, finish = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        token.run_sync_soon(begun.set)
        finish.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(limiter.share("a").run_sync, work, abandon_on_cancel=True))
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert limiter.held == 1
    assert await limiter.share("b").run_sync(lambda: "b goes on") == "b goes on"
    finish.set()
    async with limiter.share("a"):
        assert limiter.held == 1


@pytest.mark.parametrize(("slots", "of_key"), [(1, 0), (1, 2)])
def test_slots_that_nobody_could_use_are_refused(slots: int, of_key: int) -> None:
    with pytest.raises(ValueError, match="slots_of_key"):
        FairLimiter(slots, of_key)
