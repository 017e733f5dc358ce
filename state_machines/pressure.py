# ruff: noqa: E501 - a row of a table is one line
"""The pressure of a node in one respect: memory, disk or process ids.

Theory of operation
===================

Thresholds say how much of something must be available (evictionHard, evictionSoft). Again and
again the node is measured. One threshold that is not kept puts the node under pressure:

    Relieved  there is enough
    Under     a threshold is crossed
    Eased     none is crossed any more, but that may not last

A node that goes to and fro would have pods come and be thrown out again, so a pressure is shown,
and pods are kept away, until no threshold has been crossed for evictionPressureTransitionPeriod.
How long a soft threshold has been crossed (evictionSoftGracePeriod) matters to evictions alone:
the condition is shown at once.
"""

from dataclasses import dataclass
from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class PressureState(StrEnum):
    """States of one pressure."""

    RELIEVED = "Relieved"
    UNDER = "Under"
    EASED = "Eased"


class PressureEvent(StrEnum):
    """Results of a measurement."""

    CROSSED = "Crossed"
    """At least one threshold is crossed."""
    KEPT = "Kept"
    """All thresholds are kept, as far as there was something to measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureEvidence:
    """For how long no threshold has been crossed, and how long that must be."""

    kept_seconds: float
    transition_seconds: float


def kept_for_long_enough(evidence: PressureEvidence) -> bool:
    """True if the node is past going to and fro."""
    return evidence.kept_seconds >= evidence.transition_seconds


def is_shown(state: PressureState) -> bool:
    """True if the node's condition is True."""
    return state is not PressureState.RELIEVED


S, E = PressureState, PressureEvent

# fmt: off
PRESSURE: StateMachine[PressureState, PressureEvent, PressureEvidence] = StateMachine(
    name="pressure",
    starts=(
        Start(S.RELIEVED, "the agent has begun to measure"),
        Start(S.UNDER,    "an earlier agent found a threshold crossed"),
        Start(S.EASED,    "an earlier agent found one crossed, and that was no more or is long ago"),
    ),
    rows=(
        Row(S.RELIEVED, E.CROSSED, S.UNDER,    "the node runs out of it"),
        Row(S.RELIEVED, E.KEPT,    S.RELIEVED, "there is enough"),

        Row(S.UNDER,    E.CROSSED, S.UNDER,    "it lasts"),
        Row(S.UNDER,    E.KEPT,    S.RELIEVED, "no wait is configured, or nothing was measured meanwhile", kept_for_long_enough),
        Row(S.UNDER,    E.KEPT,    S.EASED,    "it may come back at once"),

        Row(S.EASED,    E.CROSSED, S.UNDER,    "it has come back"),
        Row(S.EASED,    E.KEPT,    S.RELIEVED, "it has been kept long enough", kept_for_long_enough),
        Row(S.EASED,    E.KEPT,    S.EASED,    "it has not been kept for long"),
    ),
)
# fmt: on
