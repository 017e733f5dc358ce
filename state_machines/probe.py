# ruff: noqa: E501 - a row of a table is one line
"""The life of one probe of one instance of a container.

Theory of operation
===================

A container may have a startup, a readiness and a liveness probe. Each is run again and again, and
as many successes or failures in a row as its thresholds ask for make a verdict:

    Held       its container has not started up yet: the startup probe goes first
    Undecided  it is run, and no threshold was reached yet
    Passing    the last verdict was success, and it is run on
    Failing    the last verdict was failure, and it is run on: readiness alone
    Passed     its container has started up: a startup probe is run no more
    Failed     its container is to be restarted: nothing that it would say counts any more
    Over       its container has ended, or the pod ends and asks only for readiness

What holds in Held and Undecided is what its kind begins with (`verdict`): a container lives until
the opposite is shown, serves nobody before it says so, and has started up when that is known.

The next instance of the container begins anew, with counts of its own. An agent that is started
beside containers that run goes on where the last one was: those that had started up have, and
those that were ready are. Of static pods it may learn that a moment later, from their mirrors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class ProbeKind(StrEnum):
    """The purpose of a probe: to restart a container, to have it serve, to tell that it started."""

    LIVENESS = "Liveness"
    READINESS = "Readiness"
    STARTUP = "Startup"


class Verdict(StrEnum):
    """Verdicts of a probe on its container."""

    SUCCESS = "Success"
    FAILURE = "Failure"
    UNKNOWN = "Unknown"


class ProbeState(StrEnum):
    """States of a probe."""

    HELD = "Held"
    UNDECIDED = "Undecided"
    PASSING = "Passing"
    FAILING = "Failing"
    PASSED = "Passed"
    FAILED = "Failed"
    OVER = "Over"


class ProbeEvent(StrEnum):
    """Events of a probe."""

    STARTED_UP = "StartedUp"
    """The startup probe of its container has succeeded."""
    SUCCEEDED = "Succeeded"
    """It was run, and has succeeded."""
    FAILED = "Failed"
    """It was run, and has failed."""
    ERRORED = "Errored"
    """It could not be run, which says nothing about the container."""
    RECALLED = "Recalled"
    """The API has come to tell that an earlier agent had found it well."""
    POD_ENDS = "PodEnds"
    """The containers of the pod are being stopped."""
    CONTAINER_ENDED = "ContainerEnded"
    """The instance of the container runs no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEvidence:
    """A probe's kind, how often in a row it has come out as it did now, and how often it must."""

    kind: ProbeKind
    in_a_row: int = 0
    threshold: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeVerdict:
    """The answers of all probes of a running container: past its startup probe, and ready."""

    started: bool = True
    ready: bool = True


@dataclass(frozen=True, slots=True)
class Streak:
    """The runs in a row in which a probe has come out one way."""

    succeeded: bool = False
    length: int = 0


def lengthened(streak: Streak, *, succeeded: bool) -> Streak:
    """Return the streak after one more run: the other way a new one begins."""
    if streak.succeeded is not succeeded:
        return Streak(succeeded, 1)
    return Streak(succeeded, streak.length + 1)


FIRST_VERDICTS: Mapping[ProbeKind, Verdict] = {
    ProbeKind.LIVENESS: Verdict.SUCCESS,
    ProbeKind.READINESS: Verdict.FAILURE,
    ProbeKind.STARTUP: Verdict.UNKNOWN,
}
"""The verdict before a threshold was reached, and where none will be."""

RUNS_IN = frozenset({ProbeState.UNDECIDED, ProbeState.PASSING, ProbeState.FAILING})
"""The states in which a probe is run."""


def verdict(kind: ProbeKind, state: ProbeState) -> Verdict:
    """Return what a probe says of its container."""
    if state in (ProbeState.PASSING, ProbeState.PASSED):
        return Verdict.SUCCESS
    if state in (ProbeState.FAILING, ProbeState.FAILED):
        return Verdict.FAILURE
    return FIRST_VERDICTS[kind]


def first_run_seconds(
    kind: ProbeKind,
    *,
    initial_delay_seconds: float,
    period_seconds: float,
    age_seconds: float,
) -> float:
    """Return how long to wait with the first run of a probe that may run.

    `age_seconds` is how long its container runs, which may be wrong where clocks were set. A
    readiness probe waits for nothing but its initial delay. The others, whose failure costs a
    container its life, give it one period in any case.
    """
    patience = initial_delay_seconds
    if kind is not ProbeKind.READINESS:
        patience = max(patience, period_seconds)
    return min(max(patience - age_seconds, 0.0), patience)


def decides_startup(evidence: ProbeEvidence) -> bool:
    """True if a startup probe has succeeded often enough."""
    return evidence.kind is ProbeKind.STARTUP and often_enough(evidence)


def costs_the_container(evidence: ProbeEvidence) -> bool:
    """True if a probe that restarts its container has failed often enough."""
    return evidence.kind is not ProbeKind.READINESS and often_enough(evidence)


def often_enough(evidence: ProbeEvidence) -> bool:
    """True if the threshold is reached."""
    return evidence.in_a_row >= evidence.threshold


def asks_for_startup(evidence: ProbeEvidence) -> bool:
    """True if the probe says that its container has started up."""
    return evidence.kind is ProbeKind.STARTUP


def asks_for_readiness(evidence: ProbeEvidence) -> bool:
    """True if the probe is wanted until the container has ended."""
    return evidence.kind is ProbeKind.READINESS


S, E = ProbeState, ProbeEvent

# fmt: off
PROBE: StateMachine[ProbeState, ProbeEvent, ProbeEvidence] = StateMachine(
    name="probe",
    starts=(
        Start(S.HELD,      "the container runs, and its startup probe has not succeeded yet"),
        Start(S.UNDECIDED, "the container runs, and nothing has to come first"),
        Start(S.PASSING,   "an agent was started beside a container that was ready"),
        Start(S.PASSED,    "an agent was started beside a container that had started up"),
    ),
    terminal=frozenset({S.OVER}),
    rows=(
        Row(S.HELD,      E.STARTED_UP,      S.UNDECIDED, "the container is up: now it is asked how it is"),
        Row(S.HELD,      E.POD_ENDS,        S.HELD,      "it may still become ready while it is stopped", asks_for_readiness),
        Row(S.HELD,      E.POD_ENDS,        S.OVER,      "nothing is restarted in a pod that ends"),
        Row(S.HELD,      E.CONTAINER_ENDED, S.OVER,      "the next instance starts up anew"),

        Row(S.UNDECIDED, E.SUCCEEDED,       S.PASSED,    "the container is up: startup is decided once", decides_startup),
        Row(S.UNDECIDED, E.SUCCEEDED,       S.PASSING,   "successThreshold is reached", often_enough),
        Row(S.UNDECIDED, E.SUCCEEDED,       S.UNDECIDED, "it has to succeed once more"),
        Row(S.UNDECIDED, E.FAILED,          S.FAILED,    "failureThreshold is reached: the container is restarted", costs_the_container),
        Row(S.UNDECIDED, E.FAILED,          S.FAILING,   "failureThreshold is reached", often_enough),
        Row(S.UNDECIDED, E.FAILED,          S.UNDECIDED, "one failure may be bad luck"),
        Row(S.UNDECIDED, E.ERRORED,         S.UNDECIDED, "what could not be run proves nothing"),
        Row(S.UNDECIDED, E.RECALLED,        S.PASSED,    "the container had started up before this agent was", asks_for_startup),
        Row(S.UNDECIDED, E.RECALLED,        S.PASSING,   "it was ready before this agent was: it stays so until it fails", asks_for_readiness),
        Row(S.UNDECIDED, E.POD_ENDS,        S.UNDECIDED, "it may still become ready while it is stopped", asks_for_readiness),
        Row(S.UNDECIDED, E.POD_ENDS,        S.OVER,      "nothing is restarted in a pod that ends"),
        Row(S.UNDECIDED, E.CONTAINER_ENDED, S.OVER,      "counts begin anew with the next instance"),

        Row(S.PASSING,   E.SUCCEEDED,       S.PASSING,   "all is well"),
        Row(S.PASSING,   E.FAILED,          S.FAILED,    "failureThreshold is reached: the container is restarted", costs_the_container),
        Row(S.PASSING,   E.FAILED,          S.FAILING,   "failureThreshold is reached: it serves nobody now", often_enough),
        Row(S.PASSING,   E.FAILED,          S.PASSING,   "one failure may be bad luck"),
        Row(S.PASSING,   E.ERRORED,         S.PASSING,   "what could not be run proves nothing"),
        Row(S.PASSING,   E.POD_ENDS,        S.PASSING,   "it serves until it says that it does not", asks_for_readiness),
        Row(S.PASSING,   E.POD_ENDS,        S.OVER,      "nothing is restarted in a pod that ends"),
        Row(S.PASSING,   E.CONTAINER_ENDED, S.OVER,      "counts begin anew with the next instance"),

        Row(S.FAILING,   E.SUCCEEDED,       S.PASSING,   "successThreshold is reached: it serves again", often_enough),
        Row(S.FAILING,   E.SUCCEEDED,       S.FAILING,   "it has to succeed once more"),
        Row(S.FAILING,   E.FAILED,          S.FAILING,   "it still serves nobody"),
        Row(S.FAILING,   E.ERRORED,         S.FAILING,   "what could not be run proves nothing"),
        Row(S.FAILING,   E.POD_ENDS,        S.FAILING,   "it may become ready once more while it is stopped"),
        Row(S.FAILING,   E.CONTAINER_ENDED, S.OVER,      "counts begin anew with the next instance"),

        Row(S.PASSED,    E.POD_ENDS,        S.PASSED,    "what has started up has"),
        Row(S.PASSED,    E.CONTAINER_ENDED, S.OVER,      "the next instance starts up anew"),

        Row(S.FAILED,    E.POD_ENDS,        S.FAILED,    "the container is stopped with the others, and not made again"),
        Row(S.FAILED,    E.CONTAINER_ENDED, S.OVER,      "it was stopped, or has ended by itself before that"),
    ),
)
# fmt: on
