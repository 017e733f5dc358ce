"""Doing several things at the same time: to their ends, or for as long as somebody runs."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")
U = TypeVar("U")

Work = Callable[[], Awaitable[object]]


async def run_concurrently(*works: Work) -> None:
    """Run all works; return when all are done.

    The first that fails cancels the others, and its error is raised as it is, not in a group.
    Cancellation cancels all.
    """
    await _run(works, give_up=True)


async def both(
    first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[U]]
) -> tuple[T, U]:
    """Run two works as `run_concurrently` does; return what they came to."""
    ones: list[T] = []
    others: list[U] = []

    async def run_first() -> None:
        ones.append(await first())

    async def run_second() -> None:
        others.append(await second())

    await run_concurrently(run_first, run_second)
    return ones[0], others[0]


async def run_for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[object]], at_once: int
) -> None:
    """Do the work for each item, for `at_once` of them at a time; others have their turn between.

    The first error cancels the rest, and is raised as it is.
    """
    items = iter(items)

    async def run() -> None:
        for item in items:
            await work(item)
            await trio.lowlevel.checkpoint()

    await run_concurrently(*(run for _ in range(at_once)))


async def run_all_for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[object]], at_once: int
) -> None:
    """As `run_for_each`, but an error keeps no other item from being worked on.

    In the end the first error is raised, if there was one, as it is.
    """
    failed: list[Exception] = []

    async def attempt(item: T) -> None:
        try:
            await work(item)
        except Exception as error:
            failed.append(error)

    await run_for_each(items, attempt, at_once)
    _raise_first(failed)


async def run_all(*works: Work) -> None:
    """Run all works to their ends; then raise the first error, if there was one, as it is.

    Cancellation cancels all.
    """
    await _run(works, give_up=False)


async def _run(works: Iterable[Work], *, give_up: bool) -> None:
    failed: list[Exception] = []

    async def run(work: Work) -> None:
        try:
            await work()
        except Exception as error:
            failed.append(error)
            if give_up:
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(run, work)
    _raise_first(failed)


def _raise_first(failed: list[Exception]) -> None:
    """Raise the first error, if there is one. The list is emptied.

    An error has the frames that it went through; those have the list, which is to have no error
    any more: Python frees what goes in no circle at once, and searches for the rest.
    """
    try:
        if failed:
            raise failed[0]
    finally:
        failed.clear()


async def run_and_call_if_slow(
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


class BackgroundTasks:
    """Tasks that plain functions ask for; they run while `run` does, and not before."""

    def __init__(self) -> None:
        self._added: list[Work] = []
        self._woken = trio.Event()

    def start(self, work: Work) -> None:
        """Run a work, which must not raise, as soon as tasks run. Returns at once."""
        self._added.append(work)
        self._woken.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all that was started until cancelled, which cancels all of it."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                self._start_all(nursery)

    def _start_all(self, nursery: trio.Nursery) -> None:
        """Start what waits. A function of its own, so that no variable keeps a work alive."""
        added, self._added = self._added, []
        for work in added:
            nursery.start_soon(work)
