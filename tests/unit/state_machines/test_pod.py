import pytest

from state_machines.machine import IllegalTransition
from state_machines.pod import (
    FAILING_ENDINGS,
    POD,
    PodEvent,
    PodState,
    StopEvidence,
    effective_grace_seconds,
    is_deadline_exceeded,
    may_have_running_containers,
    own_ending,
)
from tests.unit.state_machines.pod_endings import ENDINGS

STOPPED = StopEvidence(listed_at=10.0, last_call_ended_at=9.0)


def test_a_pod_walks_from_sync_to_finished() -> None:
    state = PodState.SYNC_POD
    state = POD.step(state, PodEvent.CHANGED)
    state = POD.step(state, PodEvent.DELETED)
    state = POD.step(state, PodEvent.CONTAINERS_STOPPED, STOPPED)
    assert state is PodState.TERMINATED
    state = POD.step(state, PodEvent.RELEASED)
    assert state is PodState.RELEASED
    assert POD.step(state, PodEvent.CLEANED) is PodState.FINISHED


def test_a_pod_known_only_to_the_runtime_begins_in_terminating() -> None:
    assert PodState.TERMINATING in POD.initial


def test_what_was_kept_of_a_pod_that_is_over_is_cleared_away_without_stopping_it_again() -> None:
    assert PodState.RELEASED in POD.initial


def test_nothing_is_removed_of_a_pod_that_still_holds_what_others_want() -> None:
    before = (PodState.SYNC_POD, PodState.TERMINATING, PodState.TERMINATED)
    assert not any(POD.allows(state, PodEvent.CLEANED) for state in before)


@pytest.mark.parametrize(
    "event",
    [PodEvent.DELETED, PodEvent.REMOVED, PodEvent.PREEMPTED],
)
def test_whoever_ends_a_pod_from_outside_may_do_so_again_while_it_ends(event: PodEvent) -> None:
    assert POD.step(PodState.SYNC_POD, event) is PodState.TERMINATING
    assert POD.step(PodState.TERMINATING, event) is PodState.TERMINATING
    assert POD.step(PodState.TERMINATED, event) is PodState.TERMINATED
    assert POD.step(PodState.RELEASED, event) is PodState.RELEASED


@pytest.mark.parametrize(
    "event",
    [
        PodEvent.REJECTED,  # admission happens once, before anything else
        PodEvent.COMPLETED,  # found by the sync of a pod that should run, as is its deadline
        PodEvent.DEADLINE_EXCEEDED,
    ],
)
def test_what_only_a_pod_that_should_run_can_meet_comes_not_while_it_ends(event: PodEvent) -> None:
    assert POD.step(PodState.SYNC_POD, event) is PodState.TERMINATING
    for state in (PodState.TERMINATING, PodState.TERMINATED, PodState.RELEASED):
        assert not POD.allows(state, event)


@pytest.mark.parametrize(
    "evidence",
    [
        None,
        StopEvidence(listed_at=8.9, last_call_ended_at=9.0),
        StopEvidence(listed_at=10.0, last_call_ended_at=9.0, running=("web",)),
    ],
    ids=["no listing", "listing older than the last call", "a container runs"],
)
def test_terminated_needs_a_fresh_listing_without_running_containers(
    evidence: StopEvidence | None,
) -> None:
    with pytest.raises(IllegalTransition, match="unless seen stopped"):
        POD.step(PodState.TERMINATING, PodEvent.CONTAINERS_STOPPED, evidence)


def test_a_listing_in_the_instant_in_which_the_last_call_ended_is_fresh() -> None:
    evidence = StopEvidence(listed_at=9.0, last_call_ended_at=9.0)
    assert POD.allows(PodState.TERMINATING, PodEvent.CONTAINERS_STOPPED, evidence)


def test_the_volumes_of_a_running_pod_cannot_be_released() -> None:
    assert not POD.allows(PodState.SYNC_POD, PodEvent.RELEASED)
    assert not POD.allows(PodState.TERMINATING, PodEvent.RELEASED)


def test_a_running_pod_has_no_grace_that_could_be_shortened() -> None:
    assert not POD.allows(PodState.SYNC_POD, PodEvent.GRACE_SHORTENED)


def test_containers_may_run_until_a_pod_is_terminated() -> None:
    assert [s for s in PodState if may_have_running_containers(s)] == [
        PodState.SYNC_POD,
        PodState.TERMINATING,
    ]


def test_deleting_or_removing_a_pod_does_not_fail_it() -> None:
    assert {PodEvent.COMPLETED, PodEvent.DELETED, PodEvent.REMOVED} == ENDINGS - FAILING_ENDINGS


@pytest.mark.parametrize(
    ("phase_is_terminal", "deadline_exceeded", "expected"),
    [
        (False, False, None),
        (True, False, PodEvent.COMPLETED),
        (True, True, PodEvent.COMPLETED),
        (False, True, PodEvent.DEADLINE_EXCEEDED),
    ],
)
def test_the_ending_that_the_status_of_a_pod_implies(
    phase_is_terminal: bool, deadline_exceeded: bool, expected: PodEvent | None
) -> None:
    actual = own_ending(phase_is_terminal=phase_is_terminal, deadline_exceeded=deadline_exceeded)
    assert actual is expected


@pytest.mark.parametrize(
    ("deadline", "started_at_ns", "now_ns", "expected"),
    [
        (None, 0, 10**18, False),
        (5, None, 10**18, False),
        (5, 1_000_000_000, 5_999_999_999, False),
        (5, 1_000_000_000, 6_000_000_000, True),
    ],
)
def test_the_active_deadline_counts_from_the_start_time(
    deadline: int | None, started_at_ns: int | None, now_ns: int, expected: bool
) -> None:
    exceeded = is_deadline_exceeded(
        active_deadline_seconds=deadline, started_at_ns=started_at_ns, now_ns=now_ns
    )
    assert exceeded is expected


@pytest.mark.parametrize(
    ("current", "requested", "default", "expected"),
    [
        (None, (), 30, 30),
        (None, (None,), 45, 45),
        (None, (), 0, 1),
        (None, (60,), 30, 60),
        (None, (60, 10), 30, 10),
        (None, (0,), 30, 1),
        (30, (), 90, 30),
        (30, (60,), 90, 30),
        (30, (10, None), 90, 10),
        (30, (0,), 90, 1),
    ],
)
def test_the_grace_period_is_the_smallest_wish_and_at_least_a_second(
    current: int | None, requested: tuple[int | None, ...], default: int, expected: int
) -> None:
    assert effective_grace_seconds(current, *requested, default=default) == expected
