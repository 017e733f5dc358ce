"""When it is quiet enough for what nobody waits for."""

import trio
import trio.testing
from trio.testing import MockClock

from trio_kubelet.runtime.lifecycle.activity import COUNTS_SECONDS, Activity


async def test_a_lull_is_a_time_in_which_nothing_is_started_or_stopped(
    autojump_clock: MockClock,
) -> None:
    activity, began = Activity(), trio.current_time()

    async def act(after: float, seconds: float) -> None:
        await trio.sleep(after)
        with activity.busy():
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(act, 0, 9)
        nursery.start_soon(act, 6, 9)  # until 15
        nursery.start_soon(act, 15.5, 1)  # until 16.5: the pause before was too short
        await trio.testing.wait_all_tasks_blocked()
        await activity.wait_idle(1)
        assert trio.current_time() - began == 17.5


async def test_a_start_or_stop_that_takes_its_time_keeps_nobody_waiting(
    autojump_clock: MockClock,
) -> None:
    activity, began = Activity(), trio.current_time()
    with activity.busy():
        await activity.wait_idle(1)
        assert trio.current_time() - began == COUNTS_SECONDS


async def test_an_idle_node_has_a_lull_at_once(autojump_clock: MockClock) -> None:
    activity, began = Activity(), trio.current_time()
    await activity.wait_idle(0.5)
    assert trio.current_time() == began
    with activity.busy():
        pass
    await activity.wait_idle(0.5)
    await activity.wait_idle(0.5)
    assert trio.current_time() - began == 0.5
