"""The order of a start, as a table: steps, what each needs, and one task for each.

A step runs as a task in the caller's nursery. It waits until all that it needs has been
announced, does its work, and announces itself; many then go on for as long as the agent lives.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog
import trio
from attrs import frozen

log = structlog.get_logger("start")


class StartError(Exception):
    """The agent cannot start: one line that says what is wrong and what to do."""


class Task(Protocol):
    """The body of a step: calls `task_status.started()` when others may build on it."""

    def __call__(self, *, task_status: trio.TaskStatus[None]) -> Awaitable[None]:
        """Do the step's work, for ever or to its end."""
        ...


@frozen
class Step:
    """One row of the table."""

    name: str
    needs: tuple[str, ...]
    run: Task


def once(work: Callable[[], Awaitable[object]]) -> Task:
    """A step that is announced when its work is done."""

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        await work()
        task_status.started()

    return run


def forever(work: Callable[[], Awaitable[object]]) -> Task:
    """A step that others may build on as soon as it has begun."""

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await work()

    return run


async def run_steps(steps: Iterable[Step], announce: Callable[[str], None]) -> None:
    """Run all steps until the last one ends, or one raises.

    `announce(name)` is called as each step is done with its start. Raises ValueError for a
    table that can never be done: an unknown need, or a circle.
    """
    table = tuple(steps)
    _check(table)
    done = {step.name: trio.Event() for step in table}

    async def run(step: Step) -> None:
        for need in step.needs:
            await done[need].wait()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(step.run)
            log.debug("started", step=step.name, seconds=round(trio.current_time() - began, 3))
            announce(step.name)
            done[step.name].set()

    async with trio.open_nursery() as nursery:
        for step in table:
            nursery.start_soon(run, step, name=f"start {step.name}")


def _check(steps: tuple[Step, ...]) -> None:
    possible: set[str] = set()
    waiting = list(steps)
    while waiting:
        ready = [step for step in waiting if possible.issuperset(step.needs)]
        if not ready:
            stuck = ", ".join(f"{step.name} needs {step.needs}" for step in waiting)
            raise ValueError(f"these steps can never start: {stuck}")
        possible.update(step.name for step in ready)
        waiting = [step for step in waiting if step.name not in possible]
