"""A resize: what its spec may ask for, what the node decides, and how it is made."""

import pytest

from state_machines.machine import IllegalTransition
from state_machines.resize import (
    RESIZE,
    RESIZE_REQUEST,
    ResizeEvent,
    ResizeRequestEvent,
    ResizeRequestState,
    ResizeState,
)

MET, PROPOSED, DEFERRED, INFEASIBLE = ResizeRequestState
ASKED, WITHDRAWN, GRANTED, POSTPONED, REFUSED = ResizeRequestEvent
DECISIONS = (GRANTED, POSTPONED, REFUSED)
UNDECIDED = (PROPOSED, DEFERRED)


@pytest.mark.parametrize("state", ResizeRequestState)
def test_whatever_was_decided_a_new_spec_is_looked_at_again(state: ResizeRequestState) -> None:
    assert RESIZE_REQUEST.step(state, ASKED) is PROPOSED
    assert RESIZE_REQUEST.step(state, WITHDRAWN) is MET


@pytest.mark.parametrize("event", DECISIONS)
@pytest.mark.parametrize("state", ResizeRequestState)
def test_only_what_was_asked_or_postponed_is_decided(
    state: ResizeRequestState, event: ResizeRequestEvent
) -> None:
    assert RESIZE_REQUEST.allows(state, event) is (state in UNDECIDED)


def test_what_was_refused_is_never_granted_without_another_spec() -> None:
    with pytest.raises(IllegalTransition):
        RESIZE_REQUEST.step(INFEASIBLE, GRANTED)


@pytest.mark.parametrize("state", ResizeState)
def test_an_allocation_begins_anew_whatever_became_of_the_one_before(state: ResizeState) -> None:
    assert RESIZE.step(state, ResizeEvent.ALLOCATED) is ResizeState.IN_PROGRESS


def test_what_has_failed_is_tried_until_it_is_done() -> None:
    failing = RESIZE.step(ResizeState.IN_PROGRESS, ResizeEvent.FAILED)
    assert RESIZE.step(failing, ResizeEvent.FAILED) is failing
    assert RESIZE.step(failing, ResizeEvent.COMPLETED) is ResizeState.ACTUATED


def test_nothing_fails_or_completes_that_was_not_begun() -> None:
    assert RESIZE.legal_events(ResizeState.ACTUATED) == (ResizeEvent.ALLOCATED,)
