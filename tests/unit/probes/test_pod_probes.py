"""When containers are asked, what is made of their answers, and who is told, on a mock clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock

from state_machines.probe import ProbeKind, Verdict
from trio_kubelet.clock import TrioClock
from trio_kubelet.k8s import (
    Container,
    ContainerStatus,
    HTTPGetAction,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Probe,
)
from trio_kubelet.probes import ProbeChange, ProbeRunner, Probes
from trio_kubelet.probes.pod_probes import PodProbes
from trio_kubelet.probes.result import ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.probes.runner import Target
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.lifecycle.container_workers import ContainerWorkers
from trio_kubelet.runtime.observed import ObservedContainer, ObservedState
from trio_kubelet.status import ProbeVerdict
from trio_kubelet.telemetry import EventRecorder, Journal

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u"))
EVERY_10_S = Probe(
    http_get=HTTPGetAction(), period_seconds=10, timeout_seconds=1, failure_threshold=3
)
WELL = ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
ILL = ProbeResult(outcome=ProbeOutcome.FAILURE, output="ill", by_container=True)
REFUSED = ProbeResult(outcome=ProbeOutcome.FAILURE, output="refused")


@define
class Node:
    """The probes of one pod. `answers` are the next ones of its container; the last one stays.

    `asked` are the seconds at which which kind was asked, `ended` what the runtime says has.
    """

    began: float
    answers: list[ProbeResult | ProbeError | float] = field(factory=lambda: [WELL])
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

    async def container_status(self, container_id: str) -> cri.ContainerStatusResponse:
        await trio.lowlevel.checkpoint()
        if container_id in self.ended:
            raise RpcError(Code.NOT_FOUND, "gone")
        running = cri.ContainerState(cri.ContainerState.CONTAINER_RUNNING)
        return cri.ContainerStatusResponse(status=cri.ContainerStatus(state=running))

    def start(self, container_id: str = "c-0", *, pod: Pod = POD, **probes: Probe) -> None:
        """An instance is seen to run."""
        for kind, probe in probes.items():
            self.kinds[id(probe)] = kind
        fields: dict[str, Any] = {f"{kind}_probe": probe for kind, probe in probes.items()}
        container = Container(name="c", **fields)
        now = self.probes.clock.now_ns()
        self.pod.container_started(pod, container, instance(container_id, now))

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
    recorder.add_sink(lambda event: at.events.append(f"{event.reason} {event.message}"))
    at.probes = Probes(
        runner=ProbeRunner(client=cast("RuntimeClient", at), ask_over_network=at.answer),
        recorder=recorder,
        journal=Journal(clock),
        clock=clock,
        changes=changes_in,
        pod_ip=lambda _pod: "10.0.0.2",
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
        yield at
        nursery.cancel_scope.cancel()


async def test_readiness_is_asked_for_at_once_and_then_each_period(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.start(readiness=EVERY_10_S)
        assert at.probes.verdicts["c-0"] == ProbeVerdict(started=True, ready=False)
        await at.pass_time(25)
        assert at.when("readiness") == [0, 10, 20]
        assert at.changes == [(ProbeKind.READINESS, Verdict.SUCCESS)]
        assert at.probes.verdicts["c-0"] == ProbeVerdict(started=True, ready=True)
        assert at.events == []


async def test_nothing_is_asked_before_the_initial_delay_is_over(autojump_clock: MockClock) -> None:
    async with node() as at:
        delayed = evolve(EVERY_10_S, initial_delay_seconds=15)
        at.start(readiness=delayed, liveness=evolve(delayed))
        await at.pass_time(25)
        assert at.when("readiness") == [15, 25]
        assert at.when("liveness") == [15, 25]


async def test_a_container_that_fails_its_liveness_probe_is_to_be_restarted(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [WELL, ILL]
        at.start(liveness=EVERY_10_S)
        await at.pass_time(35)
        assert (at.when("liveness"), at.pod.failed(), at.changes) == ([10, 20, 30], {}, [])
        await at.pass_time(45)
        assert at.pod.failed() == {"c-0": "liveness"}
        assert at.changes == [(ProbeKind.LIVENESS, Verdict.FAILURE)]
        await at.pass_time(95)
        assert at.when("liveness") == [10, 20, 30, 40]
        assert at.events == ["Unhealthy Liveness probe failed: ill"] * 3


async def test_the_next_instance_is_counted_anew(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.answers = [ILL]
        at.start("c-0", liveness=EVERY_10_S)
        await at.pass_time(25)
        at.end("c-0")
        at.start("c-1", liveness=EVERY_10_S)
        await at.pass_time(50)
        assert at.pod.failed() == {}
        await at.pass_time(60)
        assert at.pod.failed() == {"c-1": "liveness"}


async def test_startup_holds_the_others_back_and_then_readiness_is_asked_for_at_once(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [ILL, WELL]
        at.start(startup=EVERY_10_S, readiness=evolve(EVERY_10_S), liveness=evolve(EVERY_10_S))
        assert at.pod.unstarted() == {"c-0"}
        await at.pass_time(15)
        assert at.asked == [("startup", 10)]
        await at.pass_time(35)
        assert at.when("startup") == [10, 20]
        assert at.when("readiness") == [20, 30]
        assert at.when("liveness") == [20, 30]
        assert at.pod.unstarted() == frozenset()
        assert at.changes == [
            (ProbeKind.STARTUP, Verdict.SUCCESS),
            (ProbeKind.READINESS, Verdict.SUCCESS),
        ]
        assert at.probes.verdicts["c-0"] == ProbeVerdict(started=True, ready=True)


async def test_a_container_that_does_not_start_up_is_to_be_restarted(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [ILL]
        at.start(startup=EVERY_10_S, liveness=evolve(EVERY_10_S))
        await at.pass_time(35)
        assert at.pod.failed() == {"c-0": "startup"}
        assert at.pod.unstarted() == {"c-0"}
        assert at.when("liveness") == []
        assert at.probes.verdicts["c-0"].started is False


async def test_a_container_that_flaps_within_its_thresholds_stays_ready(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [WELL, ILL, ILL, WELL, ILL, ILL, WELL]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(65)
        assert at.changes == [(ProbeKind.READINESS, Verdict.SUCCESS)]


async def test_while_the_pod_ends_only_readiness_is_asked_for(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.start(readiness=EVERY_10_S, liveness=evolve(EVERY_10_S))
        await at.pass_time(15)
        at.answers = [ILL]
        at.pod.pod_stops()
        await at.pass_time(45)
        assert at.when("liveness") == [10]
        assert at.when("readiness") == [0, 10, 20, 30, 40]
        assert at.changes[-1] == (ProbeKind.READINESS, Verdict.FAILURE)
        assert at.pod.failed() == {}


async def test_a_run_that_was_cut_off_says_nothing(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.answers = [5.0]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(2)
        at.end()
        await at.pass_time(20)
        assert (at.changes, at.events, at.runs, dict(at.probes.verdicts)) == ([], [], [], {})


@pytest.mark.parametrize("result", [REFUSED, ProbeError("no such task")])
async def test_what_fails_because_the_container_has_ended_says_nothing(
    autojump_clock: MockClock,
    result: ProbeResult | ProbeError,
) -> None:
    async with node() as at:
        at.answers = [result]
        at.ended.add("c-0")
        at.start(liveness=evolve(EVERY_10_S, failure_threshold=1))
        await at.pass_time(25)
        assert (at.events, at.runs, at.pod.failed()) == ([], [], {})
        at.ended.clear()
        await at.pass_time(35)
        assert len(at.events) == 1


async def test_a_slow_run_does_not_move_those_that_follow(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.answers = [3.0]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(25)
        assert at.when("readiness") == [0, 10, 20]


async def test_a_run_longer_than_the_period_is_followed_at_once_and_then_in_step(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [25.0, WELL]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(45)
        assert at.when("readiness") == [0, 25, 30, 40]


@pytest.mark.parametrize(
    ("result", "event"),
    [
        (ILL, "Unhealthy Readiness probe failed: ill"),
        (
            evolve(WELL, outcome=ProbeOutcome.WARNING, output="moved"),
            "ProbeWarning Readiness probe warning: moved",
        ),
        (
            ProbeError("no port"),
            "Unhealthy Readiness probe errored and resulted in unknown state: no port",
        ),
        (
            ProbeError("cut", ProbeOutcome.FAILURE),
            "Unhealthy Readiness probe errored and resulted in failure state: cut",
        ),
    ],
)
async def test_users_are_told_in_the_words_of_the_go_kubelet(
    autojump_clock: MockClock, result: ProbeResult | ProbeError, event: str
) -> None:
    async with node() as at:
        at.answers = [result]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(5)
        assert at.events == [event]


async def test_each_run_is_told_of_with_its_outcome_and_how_long_it_took(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        warning = evolve(WELL, outcome=ProbeOutcome.WARNING)
        at.answers = [2.0, ILL, warning, *[ProbeError("no port")] * 3, WELL]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(35)
        outcomes = [(outcome, round(seconds, 3)) for _, _, outcome, seconds in at.runs]
        assert outcomes == [
            (ProbeOutcome.SUCCESS, 2),
            (ProbeOutcome.FAILURE, 0),
            (ProbeOutcome.WARNING, 0),
            (ProbeOutcome.UNKNOWN, 0),
        ]
        assert {(name, kind) for name, kind, _, _ in at.runs} == {("c", ProbeKind.READINESS)}


async def test_what_could_not_be_run_is_tried_three_times_and_proves_nothing(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [ProbeError("no port")]
        at.start(liveness=evolve(EVERY_10_S, failure_threshold=1))
        await at.pass_time(15)
        assert at.when("liveness") == [10, 10, 10]
        assert at.pod.failed() == {}


async def test_probes_go_on_in_step_after_a_bug_in_the_task_of_their_pod(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [WELL, ILL]
        async with at.workers.running():
            at.start(liveness=EVERY_10_S)
            await at.pass_time(22)
        async with at.workers.running():
            await at.pass_time(45)
        assert at.when("liveness") == [10, 20, 30, 40]
        assert at.pod.failed() == {"c-0": "liveness"}


def told(**fields: bool) -> Pod:
    status = ContainerStatus(name="c", container_id="containerd://c-0", **fields)  # type: ignore[arg-type]
    return evolve(POD, status=PodStatus(container_statuses=(status,)))


async def test_an_agent_that_is_started_goes_on_where_the_last_one_was(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.pod._opened_at_ns += 1
        at.start(
            pod=told(started=True, ready=True),
            startup=EVERY_10_S,
            readiness=evolve(EVERY_10_S),
            liveness=evolve(EVERY_10_S),
        )
        assert at.probes.verdicts["c-0"] == ProbeVerdict(started=True, ready=True)
        assert at.pod.unstarted() == frozenset()
        await at.pass_time(25)
        assert at.when("startup") == []
        assert at.when("readiness") == [5, 15, 25]
        assert at.when("liveness") == [5, 15, 25]
        assert at.changes == []


async def test_an_agent_that_is_started_asks_at_once_what_was_not_ready(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.pod._opened_at_ns += 1
        at.start(pod=told(started=True, ready=False), readiness=EVERY_10_S)
        await at.pass_time(5)
        assert at.when("readiness") == [0]


def mirror(*, started: bool, ready: bool) -> Pod:
    """What the API shows of a static pod whose container has probes."""
    container = Container(name="c", startup_probe=EVERY_10_S, readiness_probe=EVERY_10_S)
    status = told(started=started, ready=ready).status
    return Pod(metadata=POD.metadata, spec=PodSpec(containers=(container,)), status=status)


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(
    ("started", "ready", "kinds"),
    [
        (True, True, {"readiness", "liveness"}),
        (True, False, {"readiness", "liveness"}),
        (False, False, {"startup"}),
    ],
)
async def test_what_the_mirror_of_a_static_pod_tells_is_taken_up_whenever_it_comes(
    autojump_clock: MockClock, *, is_early: bool, started: bool, ready: bool, kinds: set[str]
) -> None:
    async with node() as at:
        at.answers = [ILL]
        if is_early:
            at.probes.recall(mirror(started=started, ready=ready))
        at.start(startup=EVERY_10_S, readiness=evolve(EVERY_10_S), liveness=evolve(EVERY_10_S))
        at.probes.recall(mirror(started=started, ready=ready))
        assert at.probes.verdicts["c-0"] == ProbeVerdict(started=started, ready=ready)
        assert at.pod.unstarted() == (frozenset() if started else {"c-0"})
        await at.pass_time(15)
        assert {kind for kind, _ in at.asked} == kinds
        assert at.changes == []
        at.end()
        assert dict(at.probes.verdicts) == {}


async def test_what_an_agent_has_found_out_itself_stands_against_a_mirror(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [ILL]
        at.start(readiness=evolve(EVERY_10_S, failure_threshold=1))
        await at.pass_time(1)
        at.probes.recall(mirror(started=True, ready=True))
        assert at.probes.verdicts["c-0"] == ProbeVerdict(started=True, ready=False)


async def test_what_a_mirror_recalls_is_lost_when_the_probe_fails_often_enough(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [ILL]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(1)
        at.probes.recall(mirror(started=True, ready=True))
        await at.pass_time(25)
        assert at.changes == [(ProbeKind.READINESS, Verdict.FAILURE)]
        assert at.when("readiness") == [0, 10, 20]


@pytest.mark.parametrize(
    ("container_id", "started", "ready", "verdict", "asked"),
    [
        ("c-0", True, True, (True, True), ()),
        ("c-0", True, False, (True, False), ("readiness",)),
        ("c-0", False, False, (False, False), ()),
        ("c-0", False, True, (False, False), ()),
        ("c-1", True, True, (False, False), ()),
    ],
)
@pytest.mark.parametrize("part", ["container_statuses", "init_container_statuses"])
async def test_probes_begin_where_what_was_told_of_their_very_instance_left_them(
    autojump_clock: MockClock,
    container_id: str,
    started: bool,
    ready: bool,
    verdict: tuple[bool, bool],
    asked: tuple[str, ...],
    part: str,
) -> None:
    told_of = ContainerStatus(
        name="c", container_id=f"containerd://{container_id}", started=started, ready=ready
    )
    fields: dict[str, Any] = {part: (told_of,)}
    status = PodStatus(**fields)
    async with node() as at:
        at.pod._opened_at_ns += 1
        at.start(
            pod=evolve(POD, status=status),
            startup=EVERY_10_S,
            readiness=evolve(EVERY_10_S),
            liveness=evolve(EVERY_10_S),
        )
        says = at.probes.verdicts["c-0"]
        await at.pass_time(1)
        assert (says.started, says.ready) == verdict
        assert tuple(kind for kind, _ in at.asked) == asked


async def test_a_container_without_probes_has_no_verdict(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.start()
        at.probes.recall(told(started=True, ready=False))
        assert (dict(at.probes.verdicts), at.pod.unstarted()) == ({}, frozenset())
