"""When containers are asked, what is made of their answers, and who is told."""

import pytest
from attrs import evolve
from trio.testing import MockClock

from state_machines.probe import ProbeKind, ProbeVerdict, Verdict
from tests.unit.probes.probed_pod import (
    BY_COMMAND,
    CUT_OFF,
    EVERY_10_S,
    ILL,
    POD,
    REFUSED,
    WELL,
    node,
    told,
)
from trio_kubelet.k8s import Probe
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import CONNECTIONS_OF_A_POD


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


async def test_a_container_that_has_ended_unseen_serves_nobody(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [WELL, REFUSED]
        at.start(readiness=EVERY_10_S)
        await at.pass_time(5)
        at.ended.add("c-0")
        await at.pass_time(25)
        assert at.changes == [(ProbeKind.READINESS, Verdict.SUCCESS)], "two of three have failed"
        await at.pass_time(35)
        assert at.changes[1:] == [(ProbeKind.READINESS, Verdict.FAILURE)]
        assert (at.events, len(at.runs)) == ([], 1)


async def test_a_container_that_has_ended_unseen_as_it_was_asked_serves_nobody(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.answers = [WELL, CUT_OFF]
        at.start(readiness=evolve(EVERY_10_S, failure_threshold=1))
        await at.pass_time(10.5)
        at.ended.add("c-0")
        await at.pass_time(12)
        assert at.changes[1:] == [(ProbeKind.READINESS, Verdict.FAILURE)]
        assert (at.events, len(at.runs)) == ([], 1)


@pytest.mark.parametrize(
    ("probe", "result", "known_after"),
    [
        (EVERY_10_S, CUT_OFF, 0.5),
        (EVERY_10_S, ProbeError("no such task"), 0.5),
        (BY_COMMAND, WELL, 4.5),
    ],
)
async def test_what_the_end_of_a_container_cuts_off_says_nothing_before_the_runtime_knows_of_it(
    autojump_clock: MockClock,
    probe: Probe,
    result: ProbeResult | ProbeError,
    known_after: float,
) -> None:
    async with node() as at:
        at.answers = [result]
        at.start(liveness=evolve(probe, failure_threshold=1))
        await at.pass_time(10 + known_after)
        at.ended.add("c-0")
        await at.pass_time(16)
        assert (at.events, at.runs, at.pod.failed()) == ([], [], {})
        at.ended.clear()
        await at.pass_time(26)
        assert len(at.events) == 1


async def test_a_probe_goes_on_while_runs_of_it_that_were_cut_off_are_in_doubt(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.start(liveness=evolve(BY_COMMAND, period_seconds=1))
        await at.pass_time(7.5)
        assert (len(at.events), at.pod.failed()) == (2, {})
        await at.pass_time(8)
        assert at.pod.failed() == {"c-0": "liveness"}
        assert at.changes == [(ProbeKind.LIVENESS, Verdict.FAILURE)]
        await at.pass_time(60)
        assert at.events == ["Unhealthy Liveness probe failed: "] * 3
        assert max(at.when("command")) <= 8, "what has failed is asked no more"


async def test_a_success_shows_that_what_was_cut_off_before_it_was_no_end(
    autojump_clock: MockClock,
) -> None:
    async with node() as at:
        at.exit_codes = [137, 137, 0, 137, 1]
        at.start(readiness=evolve(BY_COMMAND, period_seconds=1))
        await at.pass_time(1.5)
        assert at.events == []
        await at.pass_time(2)
        assert at.events == ["Unhealthy Readiness probe failed: "] * 2
        assert at.changes == [(ProbeKind.READINESS, Verdict.SUCCESS)]
        await at.pass_time(5)
        assert at.changes == [(ProbeKind.READINESS, Verdict.SUCCESS)], "two of three have failed"
        await at.pass_time(6)
        assert at.changes[1:] == [(ProbeKind.READINESS, Verdict.FAILURE)]
        outcomes = [outcome for _, _, outcome, _ in at.runs]
        failed = ProbeOutcome.FAILURE
        assert outcomes == [failed, failed, ProbeOutcome.SUCCESS, failed, failed, failed]


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


async def test_a_container_without_probes_has_no_verdict(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.start()
        at.probes.recall(told(started=True, ready=False))
        assert (dict(at.probes.verdicts), at.pod.unstarted()) == ({}, frozenset())


async def test_runs_for_which_a_pod_has_no_connection_left_wait_and_their_time_has_not_begun(
    autojump_clock: MockClock,
) -> None:
    more = 10
    async with node() as at:
        at.answers = [30.0]
        for number in range(CONNECTIONS_OF_A_POD + more):
            at.start(f"c-{number}", readiness=evolve(EVERY_10_S, period_seconds=3600))
        await at.pass_time(1)
        at.start("by-command", readiness=evolve(BY_COMMAND))
        await at.pass_time(20)
        assert at.when("readiness") == [0] * CONNECTIONS_OF_A_POD
        assert at.when("command")[0] == 1.1, "a command has no connection"
        await at.pass_time(70)
        assert at.when("readiness")[CONNECTIONS_OF_A_POD:] == [30] * more
        assert {seconds for *_, seconds in at.runs if seconds} == {30}


async def test_runs_of_a_pod_that_hang_hold_up_no_other_pod(autojump_clock: MockClock) -> None:
    async with node() as at:
        at.answers = [3600.0]
        for number in range(2 * CONNECTIONS_OF_A_POD):
            at.start(f"c-{number}", readiness=evolve(EVERY_10_S))
        await at.pass_time(1)
        other = evolve(POD, metadata=evolve(POD.metadata, uid="other"))
        at.pod = at.probes.open(other, at.workers)
        at.start("c-of-other", pod=other, readiness=evolve(EVERY_10_S))
        await at.pass_time(2)
        assert at.when("readiness") == [0] * CONNECTIONS_OF_A_POD + [1.1]
