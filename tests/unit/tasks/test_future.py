"""A value that others wait for."""

import pytest
import trio

from trio_kubelet.tasks.future import Future


async def test_everyone_who_waits_is_given_the_value() -> None:
    future = Future[int]()
    given: list[int] = []

    async def wait() -> None:
        given.append(await future.result())

    async def work() -> int:
        await trio.testing.wait_all_tasks_blocked()
        assert not given
        return 7

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await future.run(work)
    assert given == [7, 7]
    assert await Future.resolved("here").result() == "here"


async def test_an_error_is_for_those_who_wait_each_time_and_not_for_the_worker() -> None:
    future = Future[int]()

    async def work() -> int:
        await trio.lowlevel.checkpoint()
        raise KeyError("missing")

    await future.run(work)
    for _ in range(2):
        with pytest.raises(KeyError, match="missing"):
            await future.result()
