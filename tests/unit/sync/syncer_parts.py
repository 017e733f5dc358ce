"""Parts that stand beside a pod syncer in tests: runtimes that do little, and others that note."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import trio

from state_machines.pod import StopEvidence
from tests.trio_clock import TrioClock
from tests.unit.devices.nodes import no_devices
from tests.unit.dra.nodes import no_claims
from tests.unit.resource_managers.machines import no_managers
from trio_kubelet.errors import PodUnfitError, PreparationError
from trio_kubelet.k8s import (
    Pod,
    PodCondition,
    PodStatus,
    Time,
)
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resources.pod_cgroups import PodCgroups
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.plan import RuntimeOutcome
from trio_kubelet.runtime.lifecycle.pod_runtime import PodContainers
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeProgress
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status import Failure, StatusReporter
from trio_kubelet.sync.pod_syncer import SyncDependencies
from trio_kubelet.tasks.future import Future
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.volumes import PodStorage


class FailingOnce:
    """A runtime whose first call fails."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.reasons: Mapping[str, Reason] = {}
        self.restarting = frozenset[str]()
        self.acted_at = 0.0
        self.stop_seconds = 0.0
        self.stop_failure: RpcError | None = None
        self.call_lasts_seconds = 0.0

    def open(self, pod: Pod) -> "FailingOnce":
        return self

    async def look(self, pod: Pod) -> ObservedPod:
        self.steps.append("look")
        return ObservedPod(uid="u", name="web", namespace="shop", observed_at=trio.current_time())

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], _report: object
    ) -> RuntimeOutcome:
        self.steps.append("sync")
        if self.steps == ["sync"]:
            await trio.sleep(1)
            self.acted_at = trio.current_time()
            raise RpcError(Code.UNKNOWN, "not now")
        return RuntimeOutcome(observed=observed)

    async def stop(self, pod: Pod, grace_seconds: int) -> StopEvidence:
        await trio.sleep(self.stop_seconds)
        if self.stop_failure is not None:
            raise self.stop_failure
        now = trio.current_time()
        return StopEvidence(listed_at=now, last_call_ended_at=now + self.call_lasts_seconds)


class Waiting(FailingOnce):
    """A runtime that makes a sandbox and waits for what the containers are given."""

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], _report: object
    ) -> RuntimeOutcome:
        self.steps.append("sandbox")
        await inputs.result()
        self.steps.append("containers")
        return RuntimeOutcome(observed=observed)


class Remembering(FailingOnce):
    """A runtime that remembers with which pods it was asked."""

    def __init__(self, asked: list[Pod]) -> None:
        super().__init__()
        self._asked = asked

    async def sync(
        self, pod: Pod, observed: ObservedPod, inputs: Future[PodInputs], _report: object
    ) -> RuntimeOutcome:
        self._asked.append(pod)
        return RuntimeOutcome(observed=observed)


class Others:
    """The other parts, which have nothing to say and remember why a pod failed."""

    def __init__(self) -> None:
        self.conditions: tuple[PodCondition, ...] = ()
        self.given: list[Pod] = []
        self.failure: Failure | None = None
        self.stopped = False
        self.start_time: Time | None = None
        self.reports: list[tuple[float, bool]] = []
        self.certain = True
        self.prepared = trio.Event()
        self.prepared.set()
        self.refusal: PreparationError | PodUnfitError | None = None
        self.removed: list[str] = []
        self.stuck = ""

    def make(
        self,
        pod: Pod,
        observed: object,
        reasons: object,
        failure: Failure | None,
        *,
        restarting: frozenset[str],
        stopped: bool,
    ) -> PodStatus:
        self.failure, self.stopped = failure, stopped
        return PodStatus(conditions=self.conditions, start_time=self.start_time)

    def put(self, pod: Pod, status: PodStatus) -> None:
        self.reports.append((trio.current_time(), self.stopped))

    async def ensure(self, pod: Pod) -> None:
        self.given.append(pod)

    async def volumes_are_certain(self, pod: Pod) -> bool:
        return self.certain

    async def prepare(self, pod: Pod) -> PodInputs:
        self.given.append(pod)
        await self.prepared.wait()
        if self.refusal is not None:
            raise self.refusal
        return PodInputs()

    async def unmount(self, pod: Pod) -> None:
        if self.stuck:
            raise PreparationError("FailedKillPod", self.stuck)
        self.removed.append(f"volumes of {pod.metadata.uid}")

    async def remove(self, pod: Pod | str) -> None:
        self.removed.append(pod if isinstance(pod, str) else pod.metadata.uid)


def a_runtime_health() -> RuntimeHealth:
    runtime_health = RuntimeHealth()
    runtime_health.update(RuntimeState(up=True, network_ready=True))
    return runtime_health


def make_parts(
    runtime: FailingOnce,
    others: Others,
    journal: Journal | None = None,
    runtime_health: RuntimeHealth | None = None,
    managers: ResourceManagers | None = None,
) -> SyncDependencies:
    cache, clock, known_health = RuntimeCache(), TrioClock(), runtime_health or a_runtime_health()
    journal, allocations = journal or Journal(clock), Allocations(Path(), trio.CapacityLimiter(1))
    cache.listing_completed(trio.current_time())
    return SyncDependencies(
        open_containers=cast("Callable[[Pod], PodContainers]", runtime.open),
        cache=cache,
        statuses=cast("StatusReporter", others),
        storage=cast("PodStorage", others),
        cgroups=cast("PodCgroups", others),
        allocations=allocations,
        managers=managers or no_managers(),
        devices=managers.devices if managers is not None else no_devices(),
        claims=no_claims(journal),
        resizes=ResizeProgress(allocations, journal),
        runtime_state=lambda: known_health.state,
        busy=Activity().busy,
        recorder=EventRecorder(journal, "node"),
        clock=clock,
    )
