"""One pod's task, driven through a syncer that does as it is told."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from attrs import evolve
from structlog.testing import capture_logs

from state_machines.pod import PodEvent, PodState, StopEvidence
from state_machines.pod_ending import Ending
from tests.trio_clock import TrioClock
from tests.unit.sync.fake_syncer import FakeSyncer, stopped
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.sync.cleaning import CleaningTurns
from trio_kubelet.sync.pod_task import (
    Beginning,
    PodRequest,
    PodTask,
    SharedByTasks,
    SyncResult,
    UnfinishedError,
)
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="u1"))
DELETED = Ending(causes=(PodEvent.DELETED,), grace_seconds=30)
REMOVED = Ending(causes=(PodEvent.REMOVED,), delete_remains=True)


@pytest.fixture
def journal() -> Journal:
    return Journal(TrioClock())


@pytest.fixture
def syncer() -> FakeSyncer:
    return FakeSyncer()


FIRST = Beginning(incarnation=1)


def _nobody(_uid: str) -> None:
    """Nobody waits for the release."""


@asynccontextmanager
async def running(
    syncer: FakeSyncer,
    journal: Journal,
    beginning: Beginning = FIRST,
    cleaning: CleaningTurns | None = None,
    on_released: Callable[[str], None] = _nobody,
) -> AsyncIterator[PodTask]:
    shared = SharedByTasks(
        journal=journal,
        recorder=EventRecorder(journal, "node"),
        resync_seconds=60,
        cleaning=cleaning or CleaningTurns(Activity().wait_idle),
    )
    shared.on_released.add(on_released)
    task = PodTask(POD, syncer, shared, beginning)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        yield task
        nursery.cancel_scope.cancel()


async def test_a_pod_that_is_removed_walks_the_whole_machine(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async with running(syncer, journal) as task:
        await trio.testing.wait_all_tasks_blocked()
        task.put(PodRequest(ending=REMOVED))
        await task.finished.wait()
    assert syncer.steps == ["sync", "terminate", "release", "let go", "clean"]
    added, *walked = [entry.target for entry in journal.entries() if entry.kind == "pod"]
    assert added == PodState.SYNC_POD
    assert walked == [
        PodState.TERMINATING,
        PodState.TERMINATED,
        PodState.RELEASED,
        PodState.FINISHED,
    ]


async def test_an_ending_cancels_the_sync_in_flight(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    cancelled = trio.Event()

    async def hang(pod: Pod) -> SyncResult:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    syncer.on_sync = hang
    async with running(syncer, journal) as task:
        await trio.testing.wait_all_tasks_blocked()
        task.put(PodRequest(ending=DELETED))
        await task.finished.wait()
    assert cancelled.is_set()
    assert syncer.steps == ["sync", "terminate", "release"]


async def test_a_new_spec_waits_for_the_sync_in_flight(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    seen: list[str] = []

    async def slow(pod: Pod) -> SyncResult:
        await trio.sleep(5)
        seen.append(pod.metadata.resource_version)
        return SyncResult()

    syncer.on_sync = slow
    newer = evolve(POD, metadata=evolve(POD.metadata, resource_version="2"))
    async with running(syncer, journal) as task:
        await trio.testing.wait_all_tasks_blocked()
        task.put(PodRequest(pod=newer))
        await trio.sleep(11)
    assert seen == ["", "2"]


async def test_a_shorter_grace_period_makes_the_stop_again(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async def stop(ending: Ending) -> StopEvidence:
        assert ending.grace_seconds is not None
        await trio.sleep(ending.grace_seconds)
        return await stopped(ending)

    syncer.on_terminate = stop
    async with running(syncer, journal) as task:
        await trio.testing.wait_all_tasks_blocked()
        task.put(PodRequest(ending=DELETED))
        await trio.sleep(2)
        task.put(PodRequest(ending=replace(DELETED, grace_seconds=5)))
        task.put(PodRequest(ending=replace(DELETED, grace_seconds=20)))
        began = trio.current_time()
        await task.finished.wait()
        assert trio.current_time() - began == pytest.approx(5)
    assert syncer.asked[1:3] == [("terminate", 30), ("terminate", 5)]


async def test_a_pod_is_only_stopped_when_a_fresh_listing_shows_it(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    answers = [
        StopEvidence(listed_at=10, last_call_ended_at=20),
        StopEvidence(listed_at=30, last_call_ended_at=20, running=("container c",)),
        StopEvidence(listed_at=40, last_call_ended_at=20),
    ]

    async def look(ending: Ending) -> StopEvidence:
        return answers.pop(0)

    syncer.on_terminate = look
    async with running(syncer, journal) as task:
        task.put(PodRequest(ending=DELETED))
        await task.stopped.wait()
    assert not answers


async def test_who_waits_for_the_end_is_told_when_the_containers_have_stopped(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    early, late, after = trio.Event(), trio.Event(), trio.Event()
    async with running(syncer, journal) as task:
        task.put(PodRequest(ending=DELETED, waiters=(early,)))
        task.put(PodRequest(waiters=(late,)))
        await early.wait()
        await late.wait()
        await task.finished.wait()
        task.put(PodRequest(waiters=(after,)))
        assert after.is_set()


async def test_a_bug_in_a_session_is_logged_and_tried_again(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async def broken(pod: Pod) -> SyncResult:
        raise ZeroDivisionError("a bug")

    syncer.on_sync = broken
    async with running(syncer, journal):
        await trio.sleep(60)
    times = [at for _, at in syncer.asked if at is not None]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits[0] < waits[1] < waits[2]
    assert max(waits) <= 15
    failed = [entry.cause for entry in journal.entries() if entry.event == "FailedSync"]
    assert failed[0] == "Error syncing pod, skipping: a bug"


async def test_a_pod_that_fails_for_a_day_is_still_tried(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async def fail(pod: Pod) -> SyncResult:
        return SyncResult(failed=True)

    syncer.on_sync = fail
    async with running(syncer, journal):
        await trio.sleep(24 * 3600)
        assert syncer.asked[-1][1] == pytest.approx(trio.current_time(), abs=20)


async def test_a_sync_that_names_a_time_is_repeated_then(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async def due(pod: Pod) -> SyncResult:
        return SyncResult(due_seconds=7)

    syncer.on_sync = due
    async with running(syncer, journal):
        await trio.sleep(20)
    assert [at for _, at in syncer.asked] == pytest.approx([0, 7, 14], abs=0.1)


async def test_a_static_pod_waits_for_its_predecessor_but_not_for_its_remains(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    other, activity = FakeSyncer(), Activity()
    cleaning = CleaningTurns(activity.wait_idle)
    async with (
        running(other, journal, cleaning=cleaning) as first,
        running(syncer, journal, Beginning(incarnation=2, predecessor=first)),
    ):
        await trio.sleep(100)
        assert syncer.steps == []
        with activity.busy():
            first.put(PodRequest(ending=REMOVED))
            await first.released.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert syncer.steps == ["sync"]
            assert not first.finished.is_set()


async def test_a_pod_that_ends_while_it_waits_for_its_predecessor_never_starts(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    other = FakeSyncer()
    async with (
        running(other, journal) as first,
        running(syncer, journal, Beginning(incarnation=2, predecessor=first)) as second,
    ):
        await trio.testing.wait_all_tasks_blocked()
        second.put(PodRequest(ending=REMOVED))
        await second.finished.wait()
    assert syncer.steps == ["terminate", "release", "let go", "clean"]


async def test_a_pod_that_ends_before_its_task_has_run_waits_for_no_predecessor(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async with (
        running(FakeSyncer(), journal) as first,
        running(syncer, journal, Beginning(incarnation=2, predecessor=first)) as second,
    ):
        second.put(PodRequest(ending=REMOVED))
        with trio.fail_after(5):
            await second.finished.wait()


async def test_a_pod_waits_for_the_one_that_its_predecessor_did_not_wait_for(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async with (
        running(FakeSyncer(), journal) as first,
        running(FakeSyncer(), journal, Beginning(incarnation=2, predecessor=first)) as second,
        running(syncer, journal, Beginning(incarnation=3, predecessor=second)),
    ):
        await trio.testing.wait_all_tasks_blocked()
        second.put(PodRequest(ending=REMOVED))
        await trio.sleep(100)
        assert syncer.steps == []
        first.put(PodRequest(ending=REMOVED))
        await trio.sleep(100)
        assert "sync" in syncer.steps


async def test_an_orphan_is_never_synced(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    begun = Beginning(incarnation=1, state=PodState.TERMINATING, ending=REMOVED)
    async with running(syncer, journal, begun) as task:
        await task.finished.wait()
    assert syncer.steps == ["terminate", "release", "let go", "clean"]


async def test_what_is_left_of_a_pod_that_was_over_is_only_removed(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    begun = Beginning(incarnation=1, state=PodState.RELEASED, ending=REMOVED)
    async with running(syncer, journal, begun) as task:
        assert task.stopped.is_set()
        await task.finished.wait()
    assert syncer.steps == ["let go", "clean"]


async def test_what_is_left_of_a_pod_is_removed_in_a_lull_and_nobody_waits_for_it(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    activity, told = Activity(), list[str]()
    cleaning = CleaningTurns(activity.wait_idle)
    async with running(syncer, journal, cleaning=cleaning, on_released=told.append) as task:
        with activity.busy():
            task.put(PodRequest(ending=REMOVED))
            await task.released.wait()
            assert told == ["u1"]
            await trio.sleep(5)
            assert syncer.steps == ["terminate", "release", "let go"]
        await task.finished.wait()
    assert syncer.steps == ["terminate", "release", "let go", "clean"]


async def test_what_its_source_still_has_is_kept_for_its_readers(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async with running(syncer, journal) as task:
        task.put(PodRequest(ending=DELETED))
        await task.finished.wait()
    assert syncer.steps == ["terminate", "release"]


async def test_what_cannot_be_removed_is_tried_again_and_keeps_nobody_from_its_turn(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    cleaning, other = CleaningTurns(Activity().wait_idle, pods_at_once=1), FakeSyncer()
    attempts = iter(("fails", "fails", "works"))

    async def remove() -> None:
        if next(attempts) == "fails":
            raise UnfinishedError("not now")

    syncer.on_clean = remove
    begun = Beginning(incarnation=1, state=PodState.RELEASED, ending=REMOVED)
    async with running(syncer, journal, begun, cleaning=cleaning) as task:
        await trio.testing.wait_all_tasks_blocked()
        async with running(other, journal, begun, cleaning=cleaning) as second:
            await second.finished.wait()
            assert not task.finished.is_set()
        await task.finished.wait()
    assert syncer.steps == ["let go", "clean", "clean", "clean"]


def _stumble(*_args: object) -> None:
    raise ZeroDivisionError("a bug")


async def test_who_puts_a_request_never_stumbles_over_a_bug_of_the_pod(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    syncer.on_notice = syncer.on_report = _stumble
    with capture_logs() as logs:
        async with running(syncer, journal) as task:
            await trio.testing.wait_all_tasks_blocked()
            task.report()
            task.put(PodRequest(why=("runtime is up",)))
            await trio.testing.wait_all_tasks_blocked()
            assert syncer.steps == ["sync", "report", "sync"]
    named = [entry["pod"] for entry in logs if entry["event"] == "pod sync failed"]
    assert named == ["default/web", "default/web"]
    failed = [entry.cause for entry in journal.entries() if entry.event == "FailedSync"]
    assert failed == ["Error syncing pod, skipping: a bug"] * 2


async def test_the_journal_says_who_asked_for_a_sync(
    autojump_clock: trio.testing.MockClock, syncer: FakeSyncer, journal: Journal
) -> None:
    async with running(syncer, journal) as task:
        task.put(PodRequest(why=("spec",)))
        task.put(PodRequest(why=("ContainerDied", "spec")))
        await trio.testing.wait_all_tasks_blocked()
    asked = [entry.cause for entry in journal.entries() if entry.event == "SyncRequested"]
    assert asked[-1] == "spec, ContainerDied"
