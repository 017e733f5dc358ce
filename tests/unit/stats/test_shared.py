"""One computation for all who ask."""

import pytest
import trio
from trio.testing import MockClock

from trio_kubelet.stats.shared import SharedValue
from trio_kubelet.tasks.concurrency import BackgroundTasks


class Work:
    """Counts how often it is done; takes a second."""

    def __init__(self, *, fails: bool = False) -> None:
        self.times = 0
        self.fails = fails

    async def __call__(self) -> int:
        self.times += 1
        await trio.sleep(1)
        if self.fails:
            raise OSError("no disk")
        return self.times


async def test_readers_at_the_same_time_share_it(autojump_clock: MockClock) -> None:
    tasks, work, found = BackgroundTasks(), Work(), list[int]()
    shared = SharedValue(tasks, work, 10)

    async def read() -> None:
        found.append(await shared.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        async with trio.open_nursery() as readers:
            for _ in range(20):
                readers.start_soon(read)
        assert found == [1] * 20
        await trio.sleep(8.5)
        assert await shared.get() == 1
        await trio.sleep(1)
        assert await shared.get() == 2
        nursery.cancel_scope.cancel()


async def test_nothing_is_done_unless_somebody_asks(autojump_clock: MockClock) -> None:
    tasks, work = BackgroundTasks(), Work()
    SharedValue(tasks, work, 10)
    with trio.move_on_after(60):
        await tasks.run()
    assert work.times == 0


async def test_a_reader_that_goes_away_takes_nothing_from_the_others(
    autojump_clock: MockClock,
) -> None:
    tasks, work = BackgroundTasks(), Work()
    shared = SharedValue(tasks, work, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        with trio.move_on_after(0.5) as first:
            await shared.get()
        assert first.cancelled_caught
        assert await shared.get() == 1
        nursery.cancel_scope.cancel()


async def test_an_error_is_told_to_all_who_wait_and_kept_by_nobody(
    autojump_clock: MockClock,
) -> None:
    tasks, work = BackgroundTasks(), Work(fails=True)
    shared = SharedValue(tasks, work, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        with pytest.raises(OSError, match="no disk"):
            await shared.get()
        work.fails = False
        assert await shared.get() == 2
        nursery.cancel_scope.cancel()


async def test_who_asks_before_the_owner_runs_waits_for_it(autojump_clock: MockClock) -> None:
    tasks, work = BackgroundTasks(), Work()
    shared = SharedValue(tasks, work, 10)
    async with trio.open_nursery() as nursery:

        async def run_later() -> None:
            await trio.sleep(5)
            await tasks.run()

        nursery.start_soon(run_later)
        assert await shared.get() == 1
        assert trio.current_time() >= 6
        nursery.cancel_scope.cancel()


async def test_who_wants_a_newer_value_waits_for_the_old_work_and_has_it_done_again(
    autojump_clock: MockClock,
) -> None:
    tasks, work = BackgroundTasks(), Work()
    shared = SharedValue(tasks, work, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        nursery.start_soon(shared.get)
        await trio.sleep(0.5)
        wanted = trio.current_time()
        assert await shared.get(wanted) == 2
        assert trio.current_time() - wanted == 1.5
        assert await shared.get(wanted) == 2
        assert await shared.get() == 2
        nursery.cancel_scope.cancel()


async def test_work_that_failed_is_done_again_for_who_wants_a_newer_value(
    autojump_clock: MockClock,
) -> None:
    tasks, work = BackgroundTasks(), Work(fails=True)
    shared = SharedValue(tasks, work, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.run)
        with pytest.raises(OSError, match="no disk"):
            await shared.get()
        work.fails = False
        assert await shared.get(trio.current_time()) == 2
        nursery.cancel_scope.cancel()
