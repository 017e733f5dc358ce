"""What the API is to show, of what it has and what the node says."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodCondition,
    PodResourceClaimStatus,
    PodStatus,
    Time,
)
from trio_kubelet.status.merge import merged_status

EARLY, LATE = Time.from_ns(10**18), Time.from_ns(10**18 + 10**10)
RUNNING = ContainerState(running=ContainerStateRunning(started_at=EARLY))
WAITING = ContainerState(waiting=ContainerStateWaiting(reason="ContainerCreating"))
ENDED = ContainerState(terminated=ContainerStateTerminated(exit_code=3, reason="Error"))


def condition(kind: str, status: str = "True", at: Time = EARLY, **more: Any) -> PodCondition:
    return PodCondition(type=kind, status=status, last_transition_time=at, **more)


def test_the_node_says_what_its_own_part_is() -> None:
    own = PodStatus(phase="Running", pod_ip="10.1.0.2", start_time=LATE)
    assert merged_status(PodStatus(phase="Pending"), own) == own


def test_the_first_start_time_stays() -> None:
    merged = merged_status(PodStatus(start_time=EARLY), PodStatus(start_time=LATE))
    assert merged.start_time == EARLY


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("own_phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_a_pod_that_ended_stays_as_it_ended(phase: str, own_phase: str) -> None:
    known = PodStatus(phase=phase, reason="Evicted", message="low on memory")
    merged = merged_status(known, PodStatus(phase=own_phase, reason="Else", message="else"))
    assert (merged.phase, merged.reason, merged.message) == (phase, "Evicted", "low on memory")


@pytest.mark.parametrize(
    ("phase", "reason"), [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")]
)
def test_a_pod_that_ended_is_not_ready(phase: str, reason: str) -> None:
    own = PodStatus(phase="Running", conditions=(condition("Ready"), condition("ContainersReady")))
    merged = merged_status(PodStatus(phase=phase), own)
    assert [(c.status, c.reason) for c in merged.conditions] == [("False", reason)] * 2


def test_how_a_container_ended_is_kept_for_a_pod_that_ended() -> None:
    known = PodStatus(
        phase="Failed",
        container_statuses=(ContainerStatus(name="c", state=ENDED, restart_count=2),),
        init_container_statuses=(ContainerStatus(name="i", state=ENDED),),
    )
    own = PodStatus(
        phase="Failed",
        container_statuses=(ContainerStatus(name="c", state=WAITING),),
        init_container_statuses=(ContainerStatus(name="i"),),
    )
    merged = merged_status(known, own)
    assert merged.container_statuses == known.container_statuses
    assert merged.init_container_statuses == known.init_container_statuses


def test_a_container_that_runs_is_shown_whatever_the_api_has() -> None:
    known = PodStatus(phase="Failed", container_statuses=(ContainerStatus(name="c", state=ENDED),))
    own = PodStatus(phase="Running", container_statuses=(ContainerStatus(name="c", state=RUNNING),))
    assert merged_status(known, own).container_statuses == own.container_statuses


def test_others_conditions_are_those_of_the_api() -> None:
    known = PodStatus(conditions=(condition("example.com/gate", "False", LATE),))
    own = PodStatus(conditions=(condition("example.com/gate"), condition("example.com/old")))
    assert merged_status(known, own).conditions == known.conditions


def test_a_condition_of_the_node_that_is_over_goes() -> None:
    known = PodStatus(conditions=(condition("PodResizePending"), condition("Ready")))
    own = PodStatus(conditions=(condition("Ready"),))
    assert merged_status(known, own).conditions == (condition("Ready"),)


def test_a_condition_holds_since_it_changed() -> None:
    known = PodStatus(conditions=(condition("Ready", at=EARLY), condition("Initialized", "False")))
    own = PodStatus(
        conditions=(
            condition("Ready", at=LATE, observed_generation=2),
            condition("Initialized", at=LATE),
        )
    )
    assert merged_status(known, own).conditions == (
        condition("Ready", at=EARLY, observed_generation=2),
        condition("Initialized", at=LATE),
    )


def test_a_disruption_by_the_node_is_told_with_the_end() -> None:
    disrupted = condition("DisruptionTarget", reason="TerminationByKubelet")
    own = PodStatus(phase="Running", conditions=(disrupted,))
    assert merged_status(PodStatus(), own).conditions == ()
    assert merged_status(PodStatus(), evolve(own, phase="Failed")).conditions == (disrupted,)


def test_a_disruption_that_others_told_of_is_theirs() -> None:
    theirs = condition("DisruptionTarget", reason="DeletionByTaintManager")
    own = PodStatus(phase="Failed", conditions=(condition("DisruptionTarget", reason="Mine"),))
    assert merged_status(PodStatus(conditions=(theirs,)), own).conditions == (theirs,)


def test_claims_and_nomination_are_not_the_nodes_to_say() -> None:
    claims = (PodResourceClaimStatus(name="gpu", resource_claim_name="gpu-1"),)
    known = PodStatus(resource_claim_statuses=claims, nominated_node_name="other")
    assert merged_status(known, PodStatus()) == known


kinds = st.sampled_from(["Ready", "ContainersReady", "PodScheduled", "DisruptionTarget", "x/y"])
conditions = st.lists(
    st.builds(condition, kinds, st.sampled_from(["True", "False"]), st.sampled_from([EARLY, LATE])),
    unique_by=lambda c: c.type,
).map(tuple)
container_states = st.sampled_from([None, RUNNING, WAITING, ENDED])
statuses = st.builds(
    PodStatus,
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    reason=st.sampled_from(["", "Evicted"]),
    start_time=st.sampled_from([None, EARLY, LATE]),
    nominated_node_name=st.sampled_from(["", "other"]),
    conditions=conditions,
    container_statuses=st.builds(
        lambda state: (ContainerStatus(name="c", state=state),), container_states
    ),
)


@given(statuses, statuses)
def test_what_was_merged_once_is_not_changed_by_merging_it_again(
    known: PodStatus, own: PodStatus
) -> None:
    merged = merged_status(known, own)
    assert merged_status(merged, own) == merged


@given(st.lists(statuses, min_size=2, max_size=6))
def test_no_sequence_of_statuses_leads_out_of_an_end(said: list[PodStatus]) -> None:
    shown = PodStatus(phase="Pending")
    for own in said:
        after = merged_status(shown, own)
        if shown.phase in ("Succeeded", "Failed"):
            assert (after.phase, after.reason) == (shown.phase, shown.reason)
        shown = after
