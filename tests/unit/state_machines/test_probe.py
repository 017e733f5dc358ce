"""How a probe comes to what it says of its container."""

import pytest

from state_machines.machine import IllegalTransition
from state_machines.probe import (
    PROBE,
    ProbeEvent,
    ProbeEvidence,
    ProbeKind,
    ProbeState,
    Streak,
    Verdict,
    first_run_seconds,
    lengthened,
    verdict,
)

LIVENESS, READINESS, STARTUP = ProbeKind
HELD, UNDECIDED, PASSING, FAILING, PASSED, FAILED, OVER = ProbeState
EVENTS = {"+": ProbeEvent.SUCCEEDED, "-": ProbeEvent.FAILED, "?": ProbeEvent.ERRORED}


def walked(kind: ProbeKind, runs: str, *, successes: int = 1, failures: int = 3) -> ProbeState:
    """Where some runs lead: `+` succeeded, `-` failed, `?` could not be run."""
    state, streak = UNDECIDED, Streak()
    for run in runs:
        evidence = ProbeEvidence(kind=kind)
        if run != "?":
            streak = lengthened(streak, succeeded=run == "+")
            threshold = successes if run == "+" else failures
            evidence = ProbeEvidence(kind=kind, in_a_row=streak.length, threshold=threshold)
        state = PROBE.step(state, EVENTS[run], evidence)
    return state


@pytest.mark.parametrize(
    ("kind", "runs", "thresholds", "state"),
    [
        (READINESS, "", (1, 3), UNDECIDED),
        (READINESS, "+", (1, 3), PASSING),
        (READINESS, "+", (2, 3), UNDECIDED),
        (READINESS, "++", (2, 3), PASSING),
        (READINESS, "+-+", (2, 3), UNDECIDED),
        (READINESS, "+--", (1, 3), PASSING),
        (READINESS, "+---", (1, 3), FAILING),
        (READINESS, "+--+--", (1, 3), PASSING),
        (READINESS, "---", (1, 3), FAILING),
        (READINESS, "+---+", (1, 3), PASSING),
        (READINESS, "+---+", (2, 3), FAILING),
        (READINESS, "+---++", (2, 3), PASSING),
        (READINESS, "+?", (1, 1), PASSING),
        (READINESS, "--?-", (1, 3), FAILING),
        (LIVENESS, "+", (1, 3), PASSING),
        (LIVENESS, "--", (1, 3), UNDECIDED),
        (LIVENESS, "---", (1, 3), FAILED),
        (LIVENESS, "+---", (1, 3), FAILED),
        (LIVENESS, "--+--", (1, 3), PASSING),
        (STARTUP, "--", (1, 3), UNDECIDED),
        (STARTUP, "---", (1, 3), FAILED),
        (STARTUP, "--+", (1, 3), PASSED),
    ],
)
def test_a_threshold_of_runs_in_a_row_decides(
    kind: ProbeKind, runs: str, thresholds: tuple[int, int], state: ProbeState
) -> None:
    successes, failures = thresholds
    assert walked(kind, runs, successes=successes, failures=failures) is state


@pytest.mark.parametrize(
    ("kind", "before", "afterwards"),
    [
        (READINESS, HELD, HELD),
        (READINESS, UNDECIDED, UNDECIDED),
        (READINESS, PASSING, PASSING),
        (READINESS, FAILING, FAILING),
        (LIVENESS, HELD, OVER),
        (LIVENESS, UNDECIDED, OVER),
        (LIVENESS, PASSING, OVER),
        (LIVENESS, FAILED, FAILED),
        (STARTUP, UNDECIDED, OVER),
        (STARTUP, PASSED, PASSED),
    ],
)
def test_while_a_pod_ends_only_readiness_is_asked_for(
    kind: ProbeKind, before: ProbeState, afterwards: ProbeState
) -> None:
    assert PROBE.step(before, ProbeEvent.POD_ENDS, ProbeEvidence(kind=kind)) is afterwards


@pytest.mark.parametrize("state", [each for each in ProbeState if each is not OVER])
def test_with_its_container_every_probe_is_over(state: ProbeState) -> None:
    assert PROBE.step(state, ProbeEvent.CONTAINER_ENDED) is OVER


@pytest.mark.parametrize("state", [HELD, PASSED, FAILED, OVER])
def test_a_probe_that_is_not_run_cannot_come_out(state: ProbeState) -> None:
    with pytest.raises(IllegalTransition):
        PROBE.step(state, ProbeEvent.SUCCEEDED, ProbeEvidence(kind=READINESS))


@pytest.mark.parametrize(
    ("kind", "state", "says"),
    [
        (LIVENESS, HELD, Verdict.SUCCESS),
        (LIVENESS, UNDECIDED, Verdict.SUCCESS),
        (LIVENESS, FAILED, Verdict.FAILURE),
        (LIVENESS, OVER, Verdict.SUCCESS),
        (READINESS, HELD, Verdict.FAILURE),
        (READINESS, UNDECIDED, Verdict.FAILURE),
        (READINESS, PASSING, Verdict.SUCCESS),
        (READINESS, FAILING, Verdict.FAILURE),
        (STARTUP, UNDECIDED, Verdict.UNKNOWN),
        (STARTUP, PASSED, Verdict.SUCCESS),
        (STARTUP, FAILED, Verdict.FAILURE),
        (STARTUP, OVER, Verdict.UNKNOWN),
    ],
)
def test_what_a_probe_says_of_its_container(
    kind: ProbeKind, state: ProbeState, says: Verdict
) -> None:
    assert verdict(kind, state) is says


@pytest.mark.parametrize(
    ("kind", "initial_delay", "age", "seconds"),
    [
        (READINESS, 0, 0, 0),
        (READINESS, 5, 0, 5),
        (READINESS, 5, 2, 3),
        (READINESS, 5, 60, 0),
        (READINESS, 5, -60, 5),
        (LIVENESS, 0, 0, 10),
        (LIVENESS, 5, 0, 10),
        (LIVENESS, 30, 0, 30),
        (LIVENESS, 30, 25, 5),
        (LIVENESS, 0, 60, 0),
        (STARTUP, 0, 0, 10),
        (STARTUP, 30, 0, 30),
    ],
)
def test_a_container_has_its_initial_delay_and_before_a_restart_a_period(
    kind: ProbeKind, initial_delay: float, age: float, seconds: float
) -> None:
    waits = first_run_seconds(
        kind, initial_delay_seconds=initial_delay, period_seconds=10, age_seconds=age
    )
    assert waits == seconds
