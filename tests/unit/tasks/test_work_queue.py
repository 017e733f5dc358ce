"""Keys, workers, delays: who is looked at when."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from state_machines.backoff import BackoffPolicy
from trio_kubelet.tasks.work_queue import BUG_RETRY, Retry, WorkQueue

RETRY = BackoffPolicy(initial_seconds=10, cap_seconds=10, jitter=0.2)
RETRY_LATE = BackoffPolicy(initial_seconds=100, cap_seconds=100)


class Work:
    """Takes a second a key, and answers what it was told to."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float]] = []
        self.answers: dict[str, list[Retry | Exception]] = {}
        self.at_once: set[str] = set()
        self.most = 0
        self.idle = trio.Event()

    async def __call__(self, key: str) -> Retry | None:
        assert key not in self.at_once
        self.log.append((key, trio.current_time() - self.began))
        if not self.at_once:
            self.idle = trio.Event()
        self.at_once.add(key)
        self.most = max(self.most, len(self.at_once))
        await trio.sleep(1)
        self.at_once.remove(key)
        if not self.at_once:
            self.idle.set()
        waiting = self.answers.get(key)
        answer = waiting.pop(0) if waiting else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    began = 0.0

    @property
    def by_time(self) -> list[tuple[str, float]]:
        return sorted(self.log, key=lambda looked: (looked[1], looked[0]))

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.log]


@asynccontextmanager
async def running(work: Work, workers: int = 2) -> AsyncIterator[WorkQueue]:
    work.began = trio.current_time()
    queue = WorkQueue(work, workers=workers, name="test")
    async with trio.open_nursery() as nursery:
        await nursery.start(queue.run)
        yield queue
        nursery.cancel_scope.cancel()


async def test_keys_are_looked_at_in_order_by_few_at_a_time(autojump_clock: MockClock) -> None:
    work = Work()
    async with running(work) as queue:
        for key in "abcd":
            queue.add(key)
        await trio.sleep(5)
    assert work.by_time == [("a", 0), ("b", 0), ("c", 1), ("d", 1)]
    assert work.most == 2


async def test_owners_of_keys_take_turns(autojump_clock: MockClock) -> None:
    work = Work()
    queue = WorkQueue(work, workers=1, name="test", owner_of=lambda key: key[0])
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    with trio.move_on_after(10):
        await queue.run()
    assert work.keys == ["a1", "b1", "a2", "a3"]


async def test_a_key_that_waits_is_there_once(autojump_clock: MockClock) -> None:
    work = Work()
    async with running(work) as queue:
        queue.add("a")
        queue.add("a")
        await trio.sleep(5)
    assert work.keys == ["a"]


async def test_a_key_that_is_added_meanwhile_is_looked_at_once_more(
    autojump_clock: MockClock,
) -> None:
    work = Work()
    async with running(work) as queue:
        queue.add("a")
        await trio.sleep(0.5)
        queue.add("a")
        queue.add("a")
        await trio.sleep(5)
    assert work.log == [("a", 0), ("a", 1)]


async def test_what_failed_is_looked_at_again_after_its_delay(autojump_clock: MockClock) -> None:
    work = Work()
    work.answers["a"] = [Retry(policy=RETRY)]
    async with running(work) as queue:
        queue.add("a")
        await trio.sleep(5)
        queue.add("a")
        await trio.sleep(5)
        assert work.keys == ["a"]
        await trio.sleep(20)
    assert work.keys == ["a", "a"]
    assert 11 <= work.log[1][1] <= 11 + 10 * RETRY.jitter


async def test_what_waits_until_it_is_added_is_looked_at_then(autojump_clock: MockClock) -> None:
    work = Work()
    waits = Retry(policy=RETRY_LATE, until_added=True)
    work.answers = {"a": [waits, waits], "b": [waits]}
    async with running(work) as queue:
        queue.add("a")
        queue.add("b")
        await trio.sleep(5)
        queue.add("a")
        await trio.sleep(0.5)
        queue.add("a")
        await trio.sleep(200)
    assert work.by_time == [("a", 0), ("b", 0), ("a", 5), ("a", 6), ("b", 101)]


async def test_what_waits_for_an_answer_is_looked_at_when_there_is_one(
    autojump_clock: MockClock,
) -> None:
    work = Work()
    work.answers = {
        "a": [Retry(policy=RETRY_LATE, until_reachable=True)],
        "b": [Retry(policy=RETRY_LATE)],
    }
    async with running(work) as queue:
        queue.add("a")
        queue.add("b")
        await trio.sleep(5)
        queue.answered()
        await trio.sleep(5)
    assert work.by_time == [("a", 0), ("b", 0), ("a", 5)]


async def test_of_those_that_wait_for_an_answer_one_is_tried(autojump_clock: MockClock) -> None:
    work = Work()
    work.answers = {key: [Retry(policy=RETRY, until_reachable=True)] * 100 for key in "abc"}
    async with running(work, workers=3) as queue:
        for key in "abc":
            queue.add(key)
        await trio.sleep(100)
        assert 3 + 7 <= len(work.log) <= 3 + 10
        await work.idle.wait()
        work.log.clear()
        queue.answered()
        await trio.sleep(2)
        assert sorted(work.keys) == ["a", "b", "c"]


async def test_when_the_one_that_is_tried_has_nothing_to_do_another_one_is(
    autojump_clock: MockClock,
) -> None:
    work = Work()
    unreachable = Retry(policy=RETRY, until_reachable=True)
    work.answers = {"a": [unreachable], "b": [unreachable] * 3}
    async with running(work) as queue:
        queue.add("a")
        await trio.sleep(2)
        queue.add("b")
        await trio.sleep(60)
    assert work.keys == ["a", "b", "a", "b", "b", "b"]


async def test_a_bug_is_tried_again_and_stops_nobody(autojump_clock: MockClock) -> None:
    work = Work()
    work.answers["a"] = [ValueError("a bug")]
    async with running(work, workers=1) as queue:
        queue.add("a")
        queue.add("b")
        await trio.sleep(2 + BUG_RETRY.initial_seconds * (1 + BUG_RETRY.jitter))
    assert work.keys == ["a", "b", "a"]


async def test_what_was_cut_short_is_looked_at_in_the_next_run(autojump_clock: MockClock) -> None:
    work = Work()
    async with running(work) as queue:
        queue.add("a")
        await trio.sleep(0.5)
    work.at_once.clear()
    async with trio.open_nursery() as nursery:
        await nursery.start(queue.run)
        await wait_all_tasks_blocked()
        assert work.keys == ["a", "a"]
        nursery.cancel_scope.cancel()
