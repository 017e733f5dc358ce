"""What runs beside the containers of a pod, and when it ends."""

from functools import partial

import trio
import trio.testing
from trio.testing import MockClock

from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers


async def note_end(ended: list[str], name: str) -> None:
    try:
        await trio.sleep_forever()
    finally:
        ended.append(name)


async def test_a_worker_ends_with_its_container_and_those_of_others_with_the_pod() -> None:
    workers, ended = ContainerWorkers(), list[str]()
    with trio.fail_after(10):
        async with workers.running():
            for name in ("a", "b"):
                workers.start(name, partial(note_end, ended, name))
            await trio.testing.wait_all_tasks_blocked()
            workers.end("a")
            await trio.testing.wait_all_tasks_blocked()
            assert ended == ["a"]
    assert ended == ["a", "b"]


async def test_a_worker_with_a_bug_is_started_again_ever_later_and_disturbs_nobody(
    autojump_clock: MockClock,
) -> None:
    workers, done = ContainerWorkers(), trio.Event()
    attempts: list[float] = []

    async def stumble() -> None:
        attempts.append(trio.current_time())
        if len(attempts) < 3:
            raise ValueError("a bug")
        done.set()

    with trio.fail_after(60):
        async with workers.running():
            ended: list[str] = []
            workers.start("b", partial(note_end, ended, "b"))
            workers.start("a", stumble)
            await done.wait()
            assert ended == []
    first, second, third = attempts
    assert third - second == 2 * (second - first)


async def test_workers_that_were_cut_off_start_again_with_the_task_of_their_pod() -> None:
    workers, begun, ended = ContainerWorkers(), list[str](), list[str]()

    async def work(name: str) -> None:
        begun.append(name)
        if name == "done":
            return
        await note_end(ended, name)

    with trio.fail_after(10):
        async with workers.running():
            for name in ("a", "b", "done", "gone"):
                workers.start(name, partial(work, name))
            await trio.testing.wait_all_tasks_blocked()
            workers.end("gone")
        workers.end("b")
        begun.clear()
        async with workers.running():
            await trio.testing.wait_all_tasks_blocked()
            assert begun == ["a"]
            ended.clear()
            workers.end("a")
            await trio.testing.wait_all_tasks_blocked()
            assert ended == ["a"]
