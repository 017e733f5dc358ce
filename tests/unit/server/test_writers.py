"""Answers that are written in threads: how many at once, and for whom."""

import threading
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trio_kubelet.server import AnswerWriters, Response
from trio_kubelet.server.messages import TcpPeer, UnixPeer
from trio_kubelet.server.writers import WRITERS, Write
from trio_kubelet.tasks.fair_limiter import Share


@pytest.fixture
async def writers() -> AsyncIterator[AnswerWriters]:
    found = AnswerWriters()
    async with trio.open_nursery() as nursery:
        await nursery.start(found.run)
        yield found
        nursery.cancel_scope.cancel()


class Figures:
    """What an answer tells: how often it was gathered. The writing of it waits to be let on."""

    def __init__(self, problem: str = "") -> None:
        self.gathered = 0
        self.problem = problem
        self.go_on = threading.Semaphore(0)

    async def gather(self) -> Write:
        self.gathered += 1
        told = str(self.gathered).encode()

        def write() -> Response:
            assert self.go_on.acquire(timeout=60)
            if self.problem:
                raise OSError(self.problem)
            return Response(body=told)

        return write


async def ask(writers: AnswerWriters, figures: Figures, answers: list[object]) -> None:
    try:
        answers.append((await writers.answer("/metrics", figures.gather)).body)
    except OSError as error:
        answers.append(str(error))


async def test_who_asks_while_an_answer_is_written_has_the_next_one_with_all_who_ask_meanwhile(
    writers: AnswerWriters,
) -> None:
    figures, answers = Figures(), list[object]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, writers, figures, answers)
        await wait_all_tasks_blocked()
        for _ in range(50):
            nursery.start_soon(ask, writers, figures, answers)
        await wait_all_tasks_blocked()
        assert figures.gathered == 1
        figures.go_on.release(2)
    assert answers == [b"1"] + [b"2"] * 50


async def test_those_who_ask_at_the_same_time_have_one_answer(writers: AnswerWriters) -> None:
    figures, answers = Figures(), list[object]()
    figures.go_on.release(2)
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask, writers, figures, answers)
    assert figures.gathered <= 2


async def test_who_goes_away_takes_the_answer_from_nobody(writers: AnswerWriters) -> None:
    figures, answers = Figures(), list[object]()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as gone:
            async with trio.open_nursery() as first:
                first.start_soon(ask, writers, figures, answers)
                await wait_all_tasks_blocked()
                nursery.start_soon(ask, writers, figures, answers)
                await wait_all_tasks_blocked()
                gone.cancel()
        assert answers == []
        figures.go_on.release(2)
    assert answers == [b"2"]


async def test_all_who_wait_are_told_what_failed_and_the_next_ones_try_again(
    writers: AnswerWriters,
) -> None:
    figures, answers = Figures("no disk"), list[object]()
    figures.go_on.release(2)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask, writers, figures, answers)
    assert answers == ["no disk"] * 3
    figures.problem = ""
    figures.go_on.release()
    await ask(writers, figures, answers)
    assert answers[-1] == str(figures.gathered).encode()


async def test_variants_of_a_path_are_told_apart(writers: AnswerWriters) -> None:
    figures = Figures()
    figures.go_on.release(2)
    found = [await writers.answer("/stats", figures.gather, short) for short in (True, False)]
    assert [each.body for each in found] == [b"1", b"2"]


async def test_two_threads_write_and_each_path_has_one_of_them(writers: AnswerWriters) -> None:
    begun, finish = list[str](), threading.Event()

    async def write(path: str, threads: Share) -> None:
        def work() -> None:
            begun.append(path)
            assert finish.wait(60)

        await threads.run_sync(work)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            peer = TcpPeer(f"10.0.0.{number}", 1)
            nursery.start_soon(write, "/pods", writers.threads("/pods", peer))
        for path in ("/metrics", "/metrics/cadvisor"):
            nursery.start_soon(write, path, writers.threads(path))
        await wait_all_tasks_blocked()
        with trio.fail_after(60):
            while len(begun) < WRITERS:
                await wait_all_tasks_blocked(0.01)
        is_apart = len(set(begun)) == len(begun) == WRITERS
        finish.set()
        assert is_apart, begun
    assert len(begun) == 12


async def test_peers_that_ask_for_one_path_take_turns(writers: AnswerWriters) -> None:
    order: list[str] = []

    async def write(name: str, threads: Share) -> None:
        await threads.run_sync(lambda: order.append(name))

    hostile, good = TcpPeer("10.0.0.1", 1), UnixPeer(pid=1, uid=0, gid=0)
    async with trio.open_nursery() as nursery, writers.threads("/pods"):
        for number in range(9):
            share = writers.threads("/pods", TcpPeer(hostile.host, number))
            nursery.start_soon(write, "hostile", share)
        await wait_all_tasks_blocked()
        nursery.start_soon(write, "good", writers.threads("/pods", good))
        await wait_all_tasks_blocked()
    assert order.index("good") <= 1
