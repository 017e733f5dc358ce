"""Probes of containers that ran before the agent was started: what was told of them stands."""

from typing import Any

import pytest
from attrs import evolve
from trio.testing import MockClock

from state_machines.probe import ProbeKind, ProbeVerdict, Verdict
from tests.unit.probes.probed_pod import EVERY_10_S, ILL, POD, mirror, node, told
from trio_kubelet.k8s import (
    ContainerStatus,
    PodStatus,
)


async def test_an_agent_that_is_started_goes_on_where_the_last_one_was(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.pod._opened_at_ns += 1
        at.start(
            pod=told(started=True, ready=True),
            age_seconds=60,
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


async def test_an_agent_that_is_started_waits_for_what_is_left_of_an_initial_delay(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.pod._opened_at_ns += 1
        delayed = evolve(EVERY_10_S, initial_delay_seconds=30)
        at.start(pod=told(started=True, ready=True), readiness=delayed, liveness=evolve(delayed))
        await at.pass_time(45)
        assert at.when("readiness") == [30, 40]
        assert at.when("liveness") == [30, 40]


async def test_an_agent_that_is_started_asks_at_once_what_was_not_ready(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.pod._opened_at_ns += 1
        at.start(pod=told(started=True, ready=False), readiness=EVERY_10_S)
        await at.pass_time(5)
        assert at.when("readiness") == [0]


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
