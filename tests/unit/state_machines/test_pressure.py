import pytest

from state_machines.pressure import (
    PRESSURE,
    PressureEvent,
    PressureEvidence,
    PressureState,
    is_shown,
)

RELIEVED, UNDER, EASED = PressureState
CROSSED, KEPT = PressureEvent


def kept(seconds: float, transition: float = 300.0) -> PressureEvidence:
    return PressureEvidence(kept_seconds=seconds, transition_seconds=transition)


@pytest.mark.parametrize("state", PressureState)
def test_a_threshold_that_is_crossed_puts_the_node_under_pressure_at_once(
    state: PressureState,
) -> None:
    assert PRESSURE.step(state, CROSSED, kept(0)) is UNDER


@pytest.mark.parametrize("state", [UNDER, EASED])
@pytest.mark.parametrize(
    ("seconds", "transition", "then"),
    [(10, 300, EASED), (299.9, 300, EASED), (300, 300, RELIEVED), (10, 0, RELIEVED)],
)
def test_a_pressure_is_over_when_all_was_kept_for_the_transition_period(
    state: PressureState, seconds: float, transition: float, then: PressureState
) -> None:
    assert PRESSURE.step(state, KEPT, kept(seconds, transition)) is then


def test_a_node_that_has_enough_stays_relieved() -> None:
    assert PRESSURE.step(RELIEVED, KEPT, kept(0)) is RELIEVED


def test_the_condition_is_shown_until_the_node_is_relieved() -> None:
    assert [is_shown(state) for state in PressureState] == [False, True, True]
