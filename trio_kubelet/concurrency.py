"""Doing several things at the same time where one error is as good as another."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


async def run_concurrently(*works: Callable[[], Awaitable[object]]) -> None:
    """Run all works; return when all are done.

    The first that fails cancels the others, and its error is raised as it is, not in a group.
    Cancellation cancels all.
    """
    failed: list[Exception] = []

    async def run(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:
            failed.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(run, work)
    if failed:
        raise failed[0]


async def run_all(*works: Callable[[], Awaitable[object]]) -> None:
    """Run all works to their ends; then raise the first error, if there was one, as it is.

    Cancellation cancels all.
    """
    failed: list[Exception] = []

    async def run(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(run, work)
    if failed:
        raise failed[0]


async def and_if_it_takes_long(
    work: Callable[[], Awaitable[T]], seconds: float, call: Callable[[], object]
) -> T:
    """Do the work; `call` once meanwhile if it takes so long. Errors are raised as they are.

    Cancellation cancels the work.
    """
    answers: list[T] = []

    async def do() -> None:
        answers.append(await work())
        rest.cancel()

    async def wait() -> None:
        await trio.sleep(seconds)
        call()

    with trio.CancelScope() as rest:
        await run_concurrently(do, wait)
    return answers[0]
