"""The probes of one pod of one container, whose answers a test gives, on a mock clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import trio
from attrs import define, evolve, field

from state_machines.probe import ProbeKind, Verdict
from tests.trio_clock import TrioClock
from trio_kubelet.k8s import (
    Container,
    ContainerStatus,
    ExecAction,
    HTTPGetAction,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
)
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShares, Target
from trio_kubelet.probes import ProbeChange, ProbeRunner, Probes
from trio_kubelet.probes.exec import KILLED
from trio_kubelet.probes.pod_probes import PodProbes
from trio_kubelet.rpc import Code, FieldCut, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers
from trio_kubelet.runtime.observed import ObservedContainer, ObservedState
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))
EVERY_10_S = Probe(
    http_get=HTTPGetAction(), period_seconds=10, timeout_seconds=1, failure_threshold=3
)
BY_COMMAND = evolve(EVERY_10_S, http_get=None, exec=ExecAction(command=("check",)))
WELL = ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
ILL = ProbeResult(outcome=ProbeOutcome.FAILURE, output="ill", by_container=True)
CUT_OFF = ProbeResult(outcome=ProbeOutcome.FAILURE, output="EOF", cut_off=True)
REFUSED = ProbeResult(outcome=ProbeOutcome.FAILURE, output="refused")


@define
class Node:
    """The probes of one pod. `answers` are the next ones of its container; the last one stays.

    `exit_codes` are those of the next commands, likewise. `asked` are the seconds at which which
    kind was asked, `ended` what the runtime says has.
    """

    began: float
    answers: list[ProbeResult | ProbeError | float] = field(factory=lambda: [WELL])
    exit_codes: list[int] = field(factory=lambda: [KILLED])
    asked: list[tuple[str, float]] = field(factory=list)
    ended: set[str] = field(factory=set)
    changes: list[tuple[ProbeKind, Verdict]] = field(factory=list)
    runs: list[tuple[str, ProbeKind, ProbeOutcome, float]] = field(factory=list)
    events: list[str] = field(factory=list)
    probes: Probes = field(init=False)
    pod: PodProbes = field(init=False)
    workers: ContainerWorkers = field(factory=ContainerWorkers)
    kinds: dict[int, str] = field(factory=dict)

    async def answer(self, probe: Probe, _target: Target, _seconds: int) -> ProbeResult:
        self.asked.append((self.kinds[id(probe)], trio.current_time() - self.began))
        result = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(result, float):
            await trio.sleep(result)
            return WELL
        await trio.lowlevel.checkpoint()
        if isinstance(result, ProbeError):
            raise result
        return result

    async def exec_request(
        self, _request: cri.ExecSyncRequest, _cut: FieldCut
    ) -> cri.ExecSyncResponse:
        self.asked.append(("command", trio.current_time() - self.began))
        await trio.lowlevel.checkpoint()
        codes = self.exit_codes
        return cri.ExecSyncResponse(exit_code=codes.pop(0) if len(codes) > 1 else codes[0])

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        await trio.lowlevel.checkpoint()
        if container_id in self.ended:
            raise RpcError(Code.NOT_FOUND, "gone")
        running = cri.ContainerState(cri.ContainerState.CONTAINER_RUNNING)
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(state=running))

    def start(
        self,
        container_id: str = "c-0",
        *,
        pod: Pod = POD,
        age_seconds: float = 0,
        **probes: Probe,
    ) -> None:
        """An instance is seen to run, for some seconds already."""
        for kind, probe in probes.items():
            self.kinds[id(probe)] = kind
        fields: dict[str, Any] = {f"{kind}_probe": probe for kind, probe in probes.items()}
        container = Container(name="c", **fields)
        started_at = self.probes.clock.now_ns() - int(age_seconds * 1e9)
        self.pod.container_started(pod, container, instance(container_id, started_at))

    def end(self, container_id: str = "c-0") -> None:
        """An instance is seen to have ended."""
        self.workers.end(container_id)
        self.pod.container_ended(container_id)

    async def pass_time(self, seconds: float) -> None:
        """Wait, a moment longer than some seconds after the beginning."""
        await trio.sleep(self.began + seconds + 0.1 - trio.current_time())

    def when(self, kind: str) -> Sequence[float]:
        """The seconds at which a kind was asked."""
        return [round(at, 3) for asked, at in self.asked if asked == kind]


def instance(container_id: str, started_at: int) -> ObservedContainer:
    return ObservedContainer(
        id=container_id,
        name="c",
        sandbox_id="s",
        state=ObservedState.RUNNING,
        started_at=started_at,
    )


@asynccontextmanager
async def node() -> AsyncIterator[Node]:
    at = Node(began=trio.current_time())
    clock = TrioClock()
    changes_in, changes_out = trio.open_memory_channel[ProbeChange](10)
    recorder = EventRecorder(Journal(clock), "node")
    recorder.on_event.add(lambda event: at.events.append(f"{event.reason} {event.message}"))
    at.probes = Probes(
        runner=ProbeRunner(client=cast("RuntimeClient", at), ask_over_network=at.answer),
        recorder=recorder,
        journal=Journal(clock),
        clock=clock,
        changes=changes_in,
        pod_ip=lambda _pod: "10.0.0.2",
        shares=ProbeShares(),
        chance=lambda: 0.5,
    )
    at.probes.on_run.add(
        lambda run: at.runs.append((run.container, run.kind, run.outcome, run.duration_seconds))
    )
    at.pod = at.probes.open(POD, at.workers)

    async def take() -> None:
        async for change in changes_out:
            at.changes.append((change.kind, change.verdict))

    async with trio.open_nursery() as nursery, at.workers.running():
        nursery.start_soon(take)
        nursery.start_soon(at.probes.shares.give_turns)
        yield at
        nursery.cancel_scope.cancel()


def told(**fields: bool) -> Pod:
    status = ContainerStatus(name="c", container_id="containerd://c-0", **fields)  # type: ignore[arg-type]
    return evolve(POD, status=PodStatus(container_statuses=(status,)))


def mirror(*, started: bool, ready: bool) -> Pod:
    """What the API shows of a static pod whose container has probes."""
    container = Container(name="c", startup_probe=EVERY_10_S, readiness_probe=EVERY_10_S)
    status = told(started=started, ready=ready).status
    return Pod(metadata=POD.metadata, spec=PodSpec(containers=(container,)), status=status)
