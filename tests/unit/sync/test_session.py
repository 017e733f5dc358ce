"""What a session does with a pod whose last call to the runtime failed."""

from typing import cast

import trio
from trio.testing import MockClock

from trio_kubelet.clock import TrioClock
from trio_kubelet.k8s import ObjectMeta, Pod, PodStatus
from trio_kubelet.pleg import RuntimeCache
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState
from trio_kubelet.runtime.inputs import PodInputs
from trio_kubelet.runtime.memory import PodMemory
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.runtime.pod_runtime import RuntimeOutcome
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


class Others:
    """The other parts, which have nothing to say."""

    def report(self, *_: object, **__: object) -> PodStatus:
        return PodStatus()

    async def ensure(self, pod: Pod) -> None: ...

    async def prepare(self, pod: Pod) -> PodInputs:
        return PodInputs()


async def test_after_a_call_that_failed_the_next_sync_looks_itself_and_waits_for_no_relist(
    autojump_clock: MockClock,
) -> None:
    cache, gate, runtime, clock = RuntimeCache(), RuntimeGate(), FailingOnce(), TrioClock()
    cache.listing_completed(trio.current_time())
    gate.update(RuntimeState(up=True, network_ready=True))
    parts = Parts(
        runtime=cast("Runtime", runtime),
        cache=cache,
        statuses=cast("Statuses", Others()),
        storage=cast("Storage", Others()),
        cgroups=cast("PodCgroups", Others()),
        gate=gate,
        recorder=EventRecorder(Journal(clock), "node"),
        clock=clock,
    )
    session = parts.open_session(POD)
    assert (await session.sync(POD)).failed
    with trio.fail_after(5):
        assert not (await session.sync(POD)).failed
    assert runtime.steps == ["sync", "look", "sync"]
