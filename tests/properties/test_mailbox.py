"""What must hold however requests to a pod's task come in and are merged."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from state_machines.pod_ending import Ending
from tests.unit.state_machines.pod_endings import ENDINGS
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.sync.pod_task import PodRequest, merge_requests


class Somebody:
    def set(self) -> None:
        raise AssertionError("merging answers nobody")


endings = st.builds(
    Ending,
    causes=st.lists(st.sampled_from(sorted(ENDINGS)), min_size=1, max_size=2, unique=True).map(
        tuple
    ),
    grace_seconds=st.none() | st.integers(0, 600),
    reason=st.sampled_from(["", "Evicted", "Preempted"]),
    delete_remains=st.booleans(),
)
requests = st.builds(
    PodRequest,
    pod=st.none()
    | st.builds(Pod, metadata=st.builds(ObjectMeta, resource_version=st.text("0123456789"))),
    ending=st.none() | endings,
    waiters=st.lists(st.builds(Somebody), max_size=2).map(tuple),
    why=st.lists(st.sampled_from(["spec", "pleg", "probe"]), max_size=2, unique=True).map(tuple),
)
sequences = st.lists(requests, min_size=1, max_size=8)


def merged(sequence: list[PodRequest]) -> PodRequest:
    result: PodRequest | None = reduce(merge_requests, sequence, None)
    assert result is not None
    return result


@given(sequences)
def test_no_kill_is_lost_and_the_first_cause_stays(sequence: list[PodRequest]) -> None:
    wanted = [request.ending for request in sequence if request.ending is not None]
    ending = merged(sequence).ending
    assert (ending is not None) == bool(wanted)
    if ending is not None:
        assert ending.cause == wanted[0].cause
        assert (ending.reason, ending.message) == (wanted[0].reason, wanted[0].message)
        assert set(ending.causes) == {cause for one in wanted for cause in one.causes}
        assert ending.delete_remains == any(one.delete_remains for one in wanted)


@given(sequences, requests)
def test_grace_never_grows(sequence: list[PodRequest], new: PodRequest) -> None:
    before, after = merged(sequence).ending, merged([*sequence, new]).ending
    if before is None or before.grace_seconds is None:
        return
    assert after is not None
    assert after.grace_seconds is not None
    assert after.grace_seconds <= before.grace_seconds


@given(sequences)
def test_every_waiter_is_remembered_in_order(sequence: list[PodRequest]) -> None:
    expected = [waiter for request in sequence for waiter in request.waiters]
    assert list(merged(sequence).waiters) == expected


@given(sequences)
def test_the_newest_spec_wins(sequence: list[PodRequest]) -> None:
    pods = [request.pod for request in sequence if request.pod is not None]
    assert merged(sequence).pod is (pods[-1] if pods else None)


@given(sequences, sequences)
def test_it_does_not_matter_how_far_the_task_has_read(
    first: list[PodRequest], second: list[PodRequest]
) -> None:
    assert merge_requests(merged(first), merged(second)) == merged([*first, *second])
