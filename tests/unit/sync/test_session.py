"""What a session does with a pod that failed, or whose last call to the runtime did."""

from typing import cast

import pytest
import trio
from trio.testing import MockClock

from state_machines.pod import PodEvent, StopEvidence
from trio_kubelet.clock import TrioClock
from trio_kubelet.k8s import ObjectMeta, Pod, PodStatus
from trio_kubelet.pleg import RuntimeCache
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState
from trio_kubelet.runtime.inputs import PodInputs
from trio_kubelet.runtime.memory import PodMemory
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.runtime.pod_runtime import RuntimeOutcome
from trio_kubelet.status import Failure
from trio_kubelet.sync.mailbox import Ending
from trio_kubelet.sync.session import Parts, PodCgroups, Runtime, Statuses, Storage
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))


class FailingOnce:
    """A runtime whose first call fails."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def look(self, pod: Pod) -> ObservedPod:
        self.steps.append("look")
        return ObservedPod(uid="u", name="web", namespace="shop", observed_at=trio.current_time())

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: PodInputs, memory: PodMemory
    ) -> RuntimeOutcome:
        self.steps.append("sync")
        if self.steps == ["sync"]:
            await trio.sleep(1)
            memory.acted_at = trio.current_time()
            raise RpcError(Code.UNKNOWN, "not now")
        return RuntimeOutcome(observed=observed)

    async def stop(self, pod: Pod, grace_seconds: int, memory: PodMemory) -> StopEvidence:
        now = trio.current_time()
        return StopEvidence(listed_at=now, last_call_ended_at=now)


class Others:
    """The other parts, which have nothing to say and remember why a pod failed."""

    def __init__(self) -> None:
        self.failure: Failure | None = None

    def report(
        self, pod: Pod, observed: object, reasons: object, failure: Failure | None, **_: object
    ) -> PodStatus:
        self.failure = failure
        return PodStatus()

    async def ensure(self, pod: Pod) -> None: ...

    async def prepare(self, pod: Pod) -> PodInputs:
        return PodInputs()


def make_parts(runtime: FailingOnce, others: Others) -> Parts:
    cache, gate, clock = RuntimeCache(), RuntimeGate(), TrioClock()
    cache.listing_completed(trio.current_time())
    gate.update(RuntimeState(up=True, network_ready=True))
    return Parts(
        runtime=cast("Runtime", runtime),
        cache=cache,
        statuses=cast("Statuses", others),
        storage=cast("Storage", others),
        cgroups=cast("PodCgroups", others),
        gate=gate,
        recorder=EventRecorder(Journal(clock), "node"),
        clock=clock,
    )


async def test_after_a_call_that_failed_the_next_sync_looks_itself_and_waits_for_no_relist(
    autojump_clock: MockClock,
) -> None:
    runtime = FailingOnce()
    session = make_parts(runtime, Others()).open_session(POD)
    assert (await session.sync(POD)).failed
    with trio.fail_after(5):
        assert not (await session.sync(POD)).failed
    assert runtime.steps == ["sync", "look", "sync"]


@pytest.mark.parametrize(
    ("ending", "failure"),
    [
        (
            Ending(causes=(PodEvent.REJECTED,), reason="OutOfcpu", message="Pod was rejected"),
            Failure(reason="OutOfcpu", message="Pod was rejected", rejected=True),
        ),
        (
            Ending(causes=(PodEvent.PREEMPTED,), reason="Preempting", disruption="why"),
            Failure(reason="Preempting", disruption="why"),
        ),
        (Ending(causes=(PodEvent.DELETED,)), None),
    ],
)
async def test_the_status_is_told_why_a_pod_fails(
    autojump_clock: MockClock, ending: Ending, failure: Failure | None
) -> None:
    others = Others()
    await make_parts(FailingOnce(), others).open_session(POD).terminate(POD, ending)
    assert others.failure == failure
