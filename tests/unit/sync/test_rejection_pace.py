"""The pace of rejections under pressure."""

from itertools import pairwise

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.unit.sync.admission.pods_and_nodes import make_admission
from tests.unit.sync.sync_loops import Loop, make_pod, running
from trio_kubelet.k8s import ObjectMeta, OwnerReference, Pod
from trio_kubelet.sources import PodOperation
from trio_kubelet.sync.admission import Rejection
from trio_kubelet.sync.rejection_pace import RejectionPace


def owned(name: str, owner: str, *, controller: bool = True) -> Pod:
    pod = make_pod(name)
    owners = (
        OwnerReference(
            api_version="apps/v1", kind="ReplicaSet", name="r", uid=owner, controller=controller
        ),
    )
    metadata: ObjectMeta = evolve(pod.metadata, owner_references=owners)
    return evolve(pod, metadata=metadata)


def undecided(at: Loop) -> set[str]:
    """The pods that do not end, by what anybody knows."""
    return {task.pod.metadata.name for task in at.tasks if task.known_ending is None}


def test_each_further_pod_of_an_owner_waits_twice_as_long_up_to_a_minute() -> None:
    pace = RejectionPace()
    waits = [pace.seconds(owned(f"p{number}", "r"), 0) for number in range(10)]
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_controller_that_replaces_what_failed_makes_one_pod_a_minute_in_the_end() -> None:
    pace, now, told = RejectionPace(), 0.0, []
    for number in range(12):
        now += pace.seconds(owned(f"p{number}", "r"), now)
        told.append(now)
    assert [later - earlier for earlier, later in pairwise(told[-3:])] == [60, 60]


def test_after_a_quiet_minute_the_next_one_is_the_first() -> None:
    pace = RejectionPace()
    assert [pace.seconds(owned("p", "r"), at) for at in (0, 0, 60.9, 123)] == [0, 1, 2, 0]


@pytest.mark.parametrize("other", [owned("b", "other"), make_pod("b")])
def test_owners_do_not_wait_for_one_another(other: Pod) -> None:
    pace = RejectionPace()
    assert pace.seconds(owned("a", "r"), 0) == 0
    assert pace.seconds(other, 0) == 0
    assert pace.seconds(make_pod("c"), 0) == 0
    assert pace.seconds(owned("d", "r", controller=False), 0) == 0


async def test_a_pod_that_is_rejected_later_does_not_run_until_then_and_holds_nothing(
    autojump_clock: MockClock,
) -> None:
    rejection = Rejection(reason="Evicted", message="The node had", for_pressure=True)
    admission = make_admission(under_pressure=lambda _pod: rejection)
    async with running(admission=admission) as at:
        await at.say(PodOperation.ADD, owned("a", "r"), owned("b", "r"), owned("c", "r"))
        await trio.sleep(0.5)
        assert [stored.pod.metadata.name for stored in at.store.active()] == []
        assert {task.pod.metadata.name for task in at.tasks if task.known_ending is None} == {
            "b",
            "c",
        }
        await trio.sleep(1)
        assert undecided(at) == {"c"}
        await at.say(PodOperation.REMOVE, owned("c", "r"))
        await trio.sleep(60)
        assert list(at.tasks) == []
        assert not any(line.startswith("sync") for line in at.heard())
