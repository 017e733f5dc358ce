"""Slots that are shared by keys: nobody's queue stands before everybody else's."""

import threading
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.trio_clock import TrioClock
from trio_kubelet.logs import LogChanges, LogReader
from trio_kubelet.stats.disk_usage import DiskUsages
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import FairLimiter, Share
from trio_kubelet.volumes.plugin import VolumeThreads


async def hold(limiter: FairLimiter, key: str, name: str, order: list[str]) -> None:
    async with limiter.share(key):
        order.append(name)
        await trio.lowlevel.checkpoint()


async def test_keys_that_wait_take_turns() -> None:
    limiter = FairLimiter(slots=1, slots_of_owner=1)
    order: list[str] = []
    async with trio.open_nursery() as nursery, limiter.share("other"):
        for key, count in (("a", 3), ("b", 1), ("c", 2)):
            for number in range(count):
                nursery.start_soon(hold, limiter, key, f"{key}{number}", order)
                await wait_all_tasks_blocked()
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert limiter.held == 0


async def test_a_key_has_no_more_than_its_slots() -> None:
    limiter = FairLimiter(slots=3, slots_of_owner=2)
    order: list[str] = []
    async with limiter.share("a"), trio.open_nursery() as nursery:
        nursery.start_soon(hold_until, limiter, "a", release := trio.Event())
        await wait_all_tasks_blocked()
        nursery.start_soon(hold, limiter, "a", "third of a", order)
        await wait_all_tasks_blocked()
        assert not order
        nursery.start_soon(hold, limiter, "b", "b", order)
        await wait_all_tasks_blocked()
        assert order == ["b"]
        release.set()
    assert order == ["b", "third of a"]


async def hold_until(limiter: FairLimiter, key: str, release: trio.Event) -> None:
    async with limiter.share(key):
        await release.wait()


async def test_more_slots_serve_those_who_wait_and_fewer_take_none_away() -> None:
    limiter = FairLimiter(1, 1)
    order: list[str] = []
    async with trio.open_nursery() as nursery:
        releases = {name: trio.Event() for name in "abc"}
        for name, release in releases.items():
            nursery.start_soon(hold_until, limiter, name, release)
            await wait_all_tasks_blocked()
        limiter.set_slots(2, 2)
        assert limiter.held == 2
        limiter.set_slots(1, 1)
        releases["a"].set()
        await wait_all_tasks_blocked()
        assert limiter.held == 1, "c waits for b, too"
        nursery.start_soon(hold, limiter, "d", "d", order)
        await wait_all_tasks_blocked()
        assert not order
        for release in releases.values():
            release.set()
    assert order == ["d"]
    assert limiter.held == 0


async def test_a_namespace_of_many_pods_has_no_more_turns_than_one_of_one() -> None:
    limiter = FairLimiter(1, 1)
    order: list[str] = []

    async def hold_as(owner: str, pod: str) -> None:
        async with limiter.share(owner, pod):
            order.append(owner + pod)

    async with trio.open_nursery() as nursery, limiter.share("other"):
        for key in ("a1", "a1", "a2", "a3", "b1", "b1"):
            nursery.start_soon(hold_as, *key)
            await wait_all_tasks_blocked()
    assert order == ["a1", "b1", "a2", "b1", "a3", "a1"]


async def test_a_namespace_has_its_slots_and_each_of_its_pods_fewer() -> None:
    limiter = FairLimiter(4, 3, 2)
    order: list[str] = []

    async def wait_as(owner: str, pod: str) -> None:
        async with limiter.share(owner, pod):
            order.append(owner + pod)
            await release.wait()

    release = trio.Event()
    async with trio.open_nursery() as nursery:
        for key in ("a1", "a1", "a1", "a2", "a3", "b1", "b1"):
            nursery.start_soon(wait_as, *key)
            await wait_all_tasks_blocked()
        assert order == ["a1", "a1", "a2", "b1"]
        release.set()
    assert sorted(order) == ["a1"] * 3 + ["a2", "a3"] + ["b1"] * 2
    assert limiter.held == 0


@pytest.mark.parametrize(
    "limiter",
    [
        VolumeThreads().preparing,
        VolumeThreads().removing,
        VolumeThreads().host_paths,
        VolumeThreads().owning,
        LogReader(LogChanges()).threads,
    ],
)
async def test_the_pods_of_one_namespace_leave_threads_to_others(limiter: FairLimiter) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(hold_forever, limiter.share("hostile", f"uid-{number}"))
        await wait_all_tasks_blocked()
        assert limiter.held
        with trio.fail_after(10):
            async with limiter.share("good", "uid"):
                pass
        nursery.cancel_scope.cancel()
    assert limiter.held == 0


@pytest.mark.parametrize(
    "limiter",
    [
        VolumeThreads().preparing,
        VolumeThreads().removing,
        VolumeThreads().host_paths,
        VolumeThreads().owning,
        DiskUsages(BackgroundTasks(), TrioClock(), 60)._threads,
    ],
)
async def test_threads_that_hang_in_a_few_namespaces_leave_some_to_others(
    limiter: FairLimiter, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(100):
            share = limiter.share(f"hostile-{number % 4}", f"uid-{number}")
            nursery.start_soon(hold_forever, share)
        await wait_all_tasks_blocked()
        with trio.fail_after(3600):
            async with limiter.share("good", "uid"):
                pass
        nursery.cancel_scope.cancel()
    assert limiter.held == 0


async def test_a_slot_that_is_held_for_long_counts_for_its_owner_and_pod_alone(
    autojump_clock: MockClock,
) -> None:
    limiter = FairLimiter(2, 2, 1, stuck_seconds=10, most_held=4)
    begun: list[str] = []

    async def hold_for_ever(owner: str, pod: str) -> None:
        async with limiter.share(owner, pod):
            begun.append(owner + pod)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for key, held in (
            ("a1", ["a1"]),
            ("a1", ["a1"]),  # Its pod has its slot.
            ("a2", ["a1", "a2"]),
            ("a3", ["a1", "a2"]),  # And so has its owner.
            ("b1", ["a1", "a2", "b1"]),
            ("c1", ["a1", "a2", "b1", "c1"]),
            ("d1", ["a1", "a2", "b1", "c1"]),  # So many are all that there can be.
        ):
            nursery.start_soon(hold_for_ever, *key)
            await trio.sleep(60)
            assert begun == held
        nursery.cancel_scope.cancel()
    assert limiter.held == 0


async def test_who_waits_is_served_as_soon_as_another_is_known_to_be_stuck(
    autojump_clock: MockClock,
) -> None:
    limiter = FairLimiter(1, 1, stuck_seconds=10, most_held=3)
    order: list[str] = []
    async with trio.open_nursery() as nursery, limiter.share("hanging"):
        for name in ("first", "second"):
            nursery.start_soon(hold, limiter, name, name, order)
            await wait_all_tasks_blocked()
        await trio.sleep(9)
        assert order == []
        await trio.sleep(2)
        assert order == ["first", "second"]
    assert limiter.held == 0


async def hold_forever(share: Share) -> None:
    async with share:
        await trio.sleep_forever()


async def test_a_cancelled_wait_takes_nothing_and_leaves_the_turn_to_others() -> None:
    limiter = FairLimiter(slots=1, slots_of_owner=1)
    order: list[str] = []
    async with trio.open_nursery() as nursery, limiter.share("other"):
        with trio.CancelScope() as scope:
            nursery.start_soon(partial(hold, limiter, "b", "b", order))
            scope.cancel()
            await hold(limiter, "a", "a", order)
    assert order == ["b"]
    assert limiter.held == 0


async def test_the_last_slots_are_for_keys_that_hold_none() -> None:
    limiter = FairLimiter(slots=4, slots_of_owner=3, reserved=2)
    order: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold_until, limiter, "a", release := trio.Event())
        nursery.start_soon(hold_until, limiter, "a", release)
        await wait_all_tasks_blocked()
        nursery.start_soon(hold, limiter, "a", "a", order)
        await wait_all_tasks_blocked()
        nursery.start_soon(hold_until, limiter, "b", release)
        await wait_all_tasks_blocked()
        nursery.start_soon(hold, limiter, "b", "b", order)
        await wait_all_tasks_blocked()
        assert order == []
        async with limiter.share("c"):
            assert limiter.held == 4
        release.set()
    assert sorted(order) == ["a", "b"]
    assert limiter.held == 0


async def test_an_abandoned_thread_holds_its_slot_until_it_is_through() -> None:
    limiter = FairLimiter(slots=2, slots_of_owner=1)
    begun, finish = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        token.run_sync_soon(begun.set)
        finish.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(limiter.share("a").run_sync, work, abandon_on_cancel=True))
        await begun.wait()
        nursery.cancel_scope.cancel()
    assert limiter.held == 1
    assert await limiter.share("b").run_sync(lambda: "b goes on") == "b goes on"
    finish.set()
    async with limiter.share("a"):
        assert limiter.held == 1


@pytest.mark.parametrize(
    ("slots", "of_owner", "of_pod"), [(1, 0, None), (1, 2, None), (2, 1, 0), (3, 1, 2)]
)
def test_slots_that_nobody_could_use_are_refused(
    slots: int, of_owner: int, of_pod: int | None
) -> None:
    with pytest.raises(ValueError, match="slots_of"):
        FairLimiter(slots, of_owner, of_pod)
