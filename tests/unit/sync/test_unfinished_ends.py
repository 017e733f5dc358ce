"""Pods whose end an earlier agent has decided on: the next one brings it to its end."""

from collections.abc import Sequence

import pytest
import trio
from attrs import evolve, field, frozen
from trio.testing import MockClock

from state_machines.pod import PodEvent, PodState
from state_machines.pod_ending import Ending
from tests.unit.sync.sync_loops import Loop, make_pod, running
from trio_kubelet.eviction.records import EvictionRecord
from trio_kubelet.k8s import Pod, PodStatus, Time
from trio_kubelet.node.shutdown_record import EndedPod
from trio_kubelet.sources import PodOperation
from trio_kubelet.sync.undecided import UndecidedPods
from trio_kubelet.telemetry.events import RecordedEvent

A = make_pod("a")
EVICTION = EvictionRecord(
    uid="uid-a",
    namespace="ns",
    name="a",
    at_ns=1,
    cause="memory.available",
    message="The node was low. ",
    disruption="The node was low. ",
    grace_seconds=1,
)
SHUTDOWN = EndedPod("uid-a", 7)


@frozen
class End:
    """The end that a pod gets, and the events that are recorded of it."""

    loop: Loop
    events: list[RecordedEvent] = field(factory=list)

    async def of(self, pod: Pod) -> Ending:
        """Let the pod come; returns its ending when the task stops it."""
        self.loop.recorder.on_event.add(self.events.append)
        await self.loop.say(PodOperation.ADD, pod)
        task = self.loop.tasks.get("uid-a")
        assert task is not None
        assert task.state is PodState.TERMINATING
        assert task.ending is not None
        return task.ending

    @property
    def reasons(self) -> Sequence[str]:
        return [event.reason for event in self.events]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(A, id="that no status tells of, and nothing runs of"),
        pytest.param(evolve(A, status=PodStatus(phase="Running")), id="that runs"),
    ],
)
async def test_a_pod_ends_for_the_reason_and_in_the_words_of_the_agent_before(
    pod: Pod, autojump_clock: MockClock
) -> None:
    async with running(reject="a", unfinished=EVICTION) as at:
        end = End(at)
        assert await end.of(pod) == EVICTION.ending
        assert end.reasons == ["Evicted"]
        await trio.sleep(60)
        assert at.heard() == ["stop a Evicted", "release a", "clean a"]


async def test_a_pod_that_was_told_of_as_evicted_is_stopped_and_cleared_away_all_the_same(
    autojump_clock: MockClock,
) -> None:
    """The agent was killed between the last status and the end of its pod's task."""
    told = PodStatus(phase="Failed", reason="Evicted", message="The node was low. ")
    async with running(unfinished=EVICTION) as at:
        end = End(at)
        ending = await end.of(evolve(A, status=told))
        assert ending.causes == (PodEvent.COMPLETED, PodEvent.EVICTED)
        assert (ending.grace_seconds, ending.delete_content) == (1, True)
        assert end.reasons == []
        await trio.sleep(60)
        assert at.heard() == ["stop a Completed", "release a", "clean a"]


async def test_a_pod_that_completed_before_it_could_be_evicted_says_so(
    autojump_clock: MockClock,
) -> None:
    async with running(unfinished=EVICTION) as at:
        ending = await End(at).of(evolve(A, status=PodStatus(phase="Succeeded")))
        assert (ending.cause, ending.reason, ending.disruption) == (PodEvent.COMPLETED, "", "")


async def test_a_pod_that_is_deleted_meanwhile_was_evicted_first_and_has_no_more_grace(
    autojump_clock: MockClock,
) -> None:
    metadata = evolve(
        A.metadata, deletion_timestamp=Time.from_ns(10**9), deletion_grace_period_seconds=30
    )
    async with running(unfinished=EVICTION) as at:
        end = End(at)
        ending = await end.of(evolve(A, metadata=metadata))
        assert ending.causes == (PodEvent.EVICTED, PodEvent.DELETED)
        assert (ending.reason, ending.message) == ("Evicted", "The node was low. ")
        assert ending.grace_seconds == 1
        assert end.reasons == ["Evicted"]


async def test_what_a_shutdown_has_ended_is_ended_without_an_event_and_keeps_its_logs(
    autojump_clock: MockClock,
) -> None:
    async with running(unfinished=SHUTDOWN) as at:
        end = End(at)
        assert await end.of(A) == SHUTDOWN.ending
        assert end.reasons == []
        await trio.sleep(60)
        assert at.heard() == ["stop a NodeShutdown", "release a"]


async def test_a_pod_that_is_to_end_is_not_decided_anew_with_a_newer_node(
    autojump_clock: MockClock,
) -> None:
    asked: list[str] = []

    def wants_newer_node(pod: Pod) -> bool:
        asked.append(pod.metadata.name)
        return True

    undecided = UndecidedPods(wants_newer_node, trio.lowlevel.checkpoint)
    async with running(unfinished=EVICTION, undecided=undecided) as at:
        assert await End(at).of(A) == EVICTION.ending
    assert asked == []


async def test_other_pods_are_not_ended(autojump_clock: MockClock) -> None:
    async with running(unfinished=EVICTION) as at:
        await at.say(PodOperation.ADD, make_pod("b"))
        assert at.heard() == ["admit b beside 0", "sync b i"]
