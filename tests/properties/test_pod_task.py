"""A pod's task holds its promises, whatever its syncer does and however requests come in."""

import itertools
from collections.abc import Iterator, Sequence

import structlog.testing
import trio
import trio.testing
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from state_machines.pod import PodEvent, PodState, StopEvidence, seen_stopped
from state_machines.pod_ending import Ending
from tests.simulation.determinism import deterministic
from tests.trio_clock import TrioClock
from tests.unit.state_machines.pod_endings import LATE_ENDINGS
from tests.unit.sync.fake_syncer import FakeSyncer
from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec
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

OWN_GRACE_SECONDS = 30
LONG_SECONDS = 10_000.0

SLOWNESS_SECONDS = {"slow": 20.0, "hang": 120.0}
MISBEHAVIOURS = ("raise", "unfinished", *SLOWNESS_SECONDS, "")

waits = st.sampled_from((0.0, 0.0, 0.5, 3.0, 40.0, 90.0))
endings = st.builds(
    Ending,
    causes=st.tuples(st.sampled_from(LATE_ENDINGS)),
    grace_seconds=st.none() | st.integers(0, 60),
    delete_remains=st.booleans(),
)
evidence = st.sampled_from(("running", "stale"))


@frozen
class TimedRequest:
    """One thing that happens to the task: after a wait, a request, perhaps with a waiter."""

    wait_seconds: float
    ending: Ending | None
    spec: int | None
    waits: bool


asks = st.builds(
    TimedRequest,
    wait_seconds=waits,
    ending=st.none() | endings,
    spec=st.none() | st.integers(1, 5),
    waits=st.booleans(),
)


@frozen
class Script:
    """How a syncer behaves, call by call; afterwards it does what it should."""

    sync: tuple[str, ...] = ()
    terminate: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    clean: tuple[str, ...] = ()
    completes_at: int | None = None
    """The sync of that number finds that the pod is through."""


scripts = st.builds(
    Script,
    sync=st.lists(st.sampled_from(MISBEHAVIOURS), max_size=6).map(tuple),
    terminate=st.lists(st.sampled_from(MISBEHAVIOURS) | evidence, max_size=6).map(tuple),
    release=st.lists(st.sampled_from(MISBEHAVIOURS), max_size=4).map(tuple),
    clean=st.lists(st.sampled_from(MISBEHAVIOURS), max_size=4).map(tuple),
    completes_at=st.none() | st.integers(0, 4),
)


def pod(version: int = 0) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name="web", namespace="default", uid="u1", resource_version=f"{version}"
        ),
        spec=PodSpec(termination_grace_period_seconds=OWN_GRACE_SECONDS),
    )


class MisbehavingSyncer(FakeSyncer):
    """Does as the script says, and writes down what was wrong with what it was asked.

    A task takes whatever a syncer raises for a bug of the syncer, failed assertions too.
    """

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.synced: list[int] = []
        self.complaints: list[str] = []
        self._evidence: list[StopEvidence] = []
        self._is_released = False
        self._busy = False
        syncs, stops, releases, cleanings = map(
            _calls, (script.sync, script.terminate, script.release, script.clean)
        )

        async def sync(pod: Pod) -> SyncResult:
            self._complain_if("terminate" in self.steps, "synced although it ends")
            self.synced.append(int(pod.metadata.resource_version))
            await self._behave(next(syncs))
            if script.completes_at is not None and len(self.synced) > script.completes_at:
                return SyncResult(ending=Ending(causes=(PodEvent.COMPLETED,)))
            return SyncResult()

        async def terminate(_ending: Ending) -> StopEvidence:
            how = next(stops)
            await self._behave(how)
            now = trio.current_time()
            found = StopEvidence(
                listed_at=now - 1 if how == "stale" else now,
                last_call_ended_at=now,
                running=("container main",) if how == "running" else (),
            )
            self._evidence.append(found)
            return found

        async def release() -> None:
            is_stopped = bool(self._evidence) and seen_stopped(self._evidence[-1])
            self._complain_if(not is_stopped, "released before it was seen to have stopped")
            await self._behave(next(releases))
            self._is_released = True

        async def clean() -> None:
            self._complain_if(not self._is_released, "cleaned before it was released")
            self._complain_if(not self.was_let_go, "cleaned before it was let go")
            await self._behave(next(cleanings))

        self.on_sync, self.on_terminate = sync, terminate
        self.on_release, self.on_clean = release, clean

    @property
    def was_let_go(self) -> bool:
        return "let go" in self.steps

    def _complain_if(self, wrong: bool, complaint: str) -> None:
        if wrong:
            self.complaints.append(complaint)

    async def _behave(self, how: str) -> None:
        self._complain_if(self._busy, "asked for two things at once")
        self._busy = True
        try:
            await trio.lowlevel.checkpoint()
            if how == "raise":
                raise ZeroDivisionError("a bug")
            if how == "unfinished":
                raise UnfinishedError("not now")
            await trio.sleep(SLOWNESS_SECONDS.get(how, 0.0))
        finally:
            self._busy = False


def _calls(behaviours: Sequence[str]) -> Iterator[str]:
    return itertools.chain(behaviours, itertools.repeat(""))


@given(script=scripts, asked=st.lists(asks, max_size=8), seed=st.integers(0, 2**16))
def test_a_pod_that_is_asked_to_end_ends_once_and_tells_all_who_wait(
    script: Script, asked: list[TimedRequest], seed: int
) -> None:
    lived = _live(script, asked, seed)
    assert lived.walked == [
        PodState.TERMINATING,
        PodState.TERMINATED,
        PodState.RELEASED,
        PodState.FINISHED,
    ]
    assert all(waiter.is_set() for waiter in lived.waiters)
    assert set(lived.answered_in) <= {
        PodState.TERMINATED,
        PodState.RELEASED,
        PodState.FINISHED,
    }
    assert lived.syncer.was_let_go is lived.was_let_go
    assert lived.syncer.complaints == []


@given(script=scripts, asked=st.lists(asks, max_size=8), seed=st.integers(0, 2**16))
def test_the_grace_period_never_grows(script: Script, asked: list[TimedRequest], seed: int) -> None:
    asked_for = _live(script, asked, seed).syncer.asked
    graces = [grace for step, grace in asked_for if step == "terminate"]
    given = [OWN_GRACE_SECONDS if grace is None else grace for grace in graces]
    assert given == sorted(given, reverse=True)


@given(script=scripts, asked=st.lists(asks, max_size=8), seed=st.integers(0, 2**16))
def test_an_older_spec_never_comes_back(
    script: Script, asked: list[TimedRequest], seed: int
) -> None:
    rising = [
        evolve(each, spec=None if each.spec is None else number)
        for number, each in enumerate(asked, start=1)
    ]
    synced = _live(script, rising, seed).syncer.synced
    assert synced == sorted(synced)


@frozen
class Lived:
    """What came of a task."""

    syncer: MisbehavingSyncer
    walked: list[str]
    waiters: list[trio.Event]
    answered_in: list[PodState]
    """Where the task stood when each waiter was answered."""
    was_let_go: bool
    """Whether its source had no use for what is left of it, when the task ended."""


def _live(script: Script, asked: list[TimedRequest], seed: int) -> Lived:
    """Walk a task to its end. If nobody asks for that, its removal does at last."""
    syncer = MisbehavingSyncer(script)
    waiters: list[trio.Event] = []
    answered_in: list[PodState] = []

    async def run() -> tuple[Journal, bool]:
        journal = Journal(TrioClock())
        task = PodTask(
            pod(),
            syncer,
            SharedByTasks(
                journal=journal,
                recorder=EventRecorder(Journal(TrioClock()), "node"),
                resync_seconds=60,
                cleaning=CleaningTurns(Activity().wait_idle),
            ),
            Beginning(incarnation=1),
        )

        async def wait(waiter: trio.Event) -> None:
            await waiter.wait()
            answered_in.append(task.state)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            for ask in (*asked, TimedRequest(0.0, Ending(causes=(PodEvent.REMOVED,)), None, True)):
                await trio.sleep(ask.wait_seconds)
                waiter = trio.Event()
                if ask.waits:
                    waiters.append(waiter)
                    nursery.start_soon(wait, waiter)
                task.put(
                    PodRequest(
                        pod=pod(ask.spec) if ask.spec is not None else None,
                        ending=ask.ending,
                        waiters=(waiter,) if ask.waits else (),
                    )
                )
            with trio.fail_after(LONG_SECONDS):
                await task.finished.wait()
            assert task.ending is not None
        return journal, task.ending.delete_remains

    with deterministic(seed), structlog.testing.capture_logs():
        journal, was_let_go = trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    steps = [entry for entry in journal.entries() if entry.source]
    walked = [step.target for step in steps if step.target != step.source]
    return Lived(syncer, walked, waiters, answered_in, was_let_go)
