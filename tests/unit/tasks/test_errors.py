"""Errors that were handled: what they went through goes at once, without a search for circles."""

import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import cast

import pytest

from trio_kubelet.tasks.concurrency import Work, run_all, run_all_for_each, run_concurrently
from trio_kubelet.tasks.future import Future
from trio_kubelet.tasks.threads import run_in_thread


class Thing:
    """A local variable of the frame in which the error is raised."""


async def through_a_future(work: Work) -> None:
    future = Future[object]()
    await future.run(work)
    for _ in range(2):
        with suppress(KeyError):
            await future.result()
    del future  # The error goes through this frame, too.


async def through_one_work(work: Work) -> None:
    await run_concurrently(work)


async def through_all_works(work: Work) -> None:
    await run_all(work, work)


async def through_items(work: Work) -> None:
    await run_all_for_each([work, work], lambda item: item(), at_once=2)


async def through_a_thread(work: Work) -> None:
    await run_in_thread(lambda: cast("Coroutine[None, None, None]", work()).send(None))


@pytest.fixture
def without_searches() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "run",
    [through_a_future, through_one_work, through_all_works, through_items, through_a_thread],
)
async def test_an_error_that_was_handled_keeps_nothing(
    without_searches: None, run: Callable[[Work], Awaitable[None]]
) -> None:
    things: list[weakref.ref[Thing]] = []

    async def work() -> None:
        thing = Thing()
        things.append(weakref.ref(thing))
        raise KeyError("missing")

    with suppress(KeyError):
        await run(work)

    assert things
    assert [each() for each in things] == [None] * len(things)
