"""The pace of rejections."""

from itertools import pairwise

import pytest
import structlog
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.unit.sync.admission.pods_and_nodes import make_admission
from tests.unit.sync.sync_loops import Loop, make_pod, running
from trio_kubelet.k8s import ObjectMeta, OwnerReference, Pod, Time
from trio_kubelet.runtime.lifecycle.activity import Activity
from trio_kubelet.sources import PodOperation
from trio_kubelet.sync.admission import Admission, Rejection
from trio_kubelet.sync.cleaning import LONGEST_SECONDS, QUIET_SECONDS
from trio_kubelet.sync.pod_task import PodSteps
from trio_kubelet.sync.pod_tasks import CLEANED_AT_ONCE
from trio_kubelet.sync.rejection_pace import RejectionPace
from trio_kubelet.sync.rejections import ENDS_AT_ONCE
from trio_kubelet.telemetry.events import RecordedEvent


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


def test_of_many_pods_of_an_owner_that_come_at_once_no_two_are_told_of_together() -> None:
    pace = RejectionPace()
    waits = [pace.seconds(owned(f"p{number}", "r"), 0) for number in range(11)]
    assert waits == [0, 1, 3, 7, 15, 25, 35, 60, 70, 80, 90]


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
    rejection = Rejection(reason="Evicted", message="The node had", is_paced=True)
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


def in_namespace(pod: Pod, namespace: str) -> Pod:
    metadata: ObjectMeta = evolve(pod.metadata, namespace=namespace)
    return evolve(pod, metadata=metadata)


def reject_all() -> Admission:
    rejection = Rejection(reason="NodePorts", message="no free port")
    return make_admission(under_pressure=lambda _pod: rejection)


async def test_of_thousands_of_rejected_pods_a_few_end_at_a_time_and_namespaces_take_turns(
    autojump_clock: MockClock,
) -> None:
    many = [make_pod(f"a{number}") for number in range(3 * ENDS_AT_ONCE)]
    other = in_namespace(make_pod("z"), "other")
    async with running(admission=reject_all()) as at:
        await at.say(PodOperation.ADD, *many, other)
        assert len(list(at.tasks)) == ENDS_AT_ONCE
        await trio.sleep(1.5)
        assert "stop z Rejected" in at.heard()
        await trio.sleep(10)
        assert list(at.tasks) == []
        assert all(stored.over for stored in at.store)


async def test_a_rejected_pod_that_is_deleted_or_goes_while_it_waits_for_its_end_is_let_go(
    autojump_clock: MockClock,
) -> None:
    first = [make_pod(f"a{number}") for number in range(ENDS_AT_ONCE)]
    deleted, removed, again = make_pod("deleted"), make_pod("removed"), make_pod("again")
    marked = evolve(deleted.metadata, deletion_timestamp=Time.from_ns(10**9))
    async with running(admission=reject_all()) as at:
        await at.say(PodOperation.ADD, *first, deleted, removed, again)
        await at.say(PodOperation.DELETE, evolve(deleted, metadata=marked))
        await at.say(PodOperation.REMOVE, removed)
        await at.say(PodOperation.REMOVE, again)
        await at.say(PodOperation.ADD, again)
        at.heard()
        await trio.sleep(10)
        heard = at.heard()
        assert "stop deleted Deleted" in heard
        assert [line for line in heard if line.startswith("stop again")] == ["stop again Rejected"]
        assert not any(line.endswith("removed") for line in heard)
        assert list(at.tasks) == []


async def test_of_thousands_of_pods_that_were_over_when_they_went_a_few_have_tasks_at_a_time(
    autojump_clock: MockClock,
) -> None:
    many = [make_pod(f"a{number}") for number in range(3 * CLEANED_AT_ONCE)]
    back = many[-1]
    async with running(admission=reject_all()) as at:
        await at.say(PodOperation.ADD, *many)
        await trio.sleep(10)
        at.heard()
        with at.activity.busy():  # So that they are not cleaned yet.
            await at.say(PodOperation.REMOVE, *many)
            assert len(list(at.tasks)) == CLEANED_AT_ONCE
            assert len(at.tasks.uids) == len(many), "housekeeping would take them for orphans"
            await at.say(PodOperation.ADD, back)
            await trio.sleep(1)
        await trio.sleep(60)
        heard = at.heard()
        assert f"leave remains of {back.metadata.name}" in heard
        assert f"stop {back.metadata.name} Rejected" in heard
        assert {f"clean {pod.metadata.name}" for pod in many[:-1]} <= set(heard)
        assert at.tasks.uids == []


async def test_what_is_logged_of_a_rejection_names_no_pod_that_was_released_before(
    autojump_clock: MockClock,
) -> None:
    bound: list[object] = []

    def note(_event: RecordedEvent) -> None:
        bound.append(structlog.contextvars.get_contextvars().get("pod"))

    many = [make_pod(f"a{number}") for number in range(2 * ENDS_AT_ONCE)]
    async with running(admission=reject_all()) as at:
        at.recorder.on_event.add(note)
        await at.say(PodOperation.ADD, *many)
        await trio.sleep(10)
    assert bound == [None] * len(many)


async def test_a_rejected_pod_whose_place_another_sources_takes_ends_once(
    autojump_clock: MockClock,
) -> None:
    first = [make_pod(f"a{number}") for number in range(ENDS_AT_ONCE)]
    pod = make_pod("b")
    other = in_namespace(pod, "other")
    async with running(admission=reject_all()) as at:
        await at.say(PodOperation.ADD, *first, pod)
        await at.say(PodOperation.ADD, other)
        await trio.sleep(10)
        stops = [line for line in at.heard() if line.startswith("stop b")]
        assert stops == ["stop b Rejected"]
        assert list(at.tasks) == []


async def test_many_pods_are_cleaned_in_time_on_a_node_that_is_never_idle(
    autojump_clock: MockClock,
) -> None:
    many = [make_pod(f"a{number}") for number in range(3 * CLEANED_AT_ONCE)]

    async def be_busy(activity: Activity) -> None:
        while True:
            with activity.busy():
                await trio.sleep(QUIET_SECONDS / 2)

    async with running(admission=reject_all()) as at, trio.open_nursery() as nursery:
        await at.say(PodOperation.ADD, *many)
        await trio.sleep(10)
        nursery.start_soon(be_busy, at.activity)
        await at.say(PodOperation.REMOVE, *many)
        await trio.sleep(LONGEST_SECONDS + 1)
        assert {f"clean {pod.metadata.name}" for pod in many} <= set(at.heard())
        nursery.cancel_scope.cancel()


async def test_a_bug_in_the_cleaning_of_one_pod_keeps_no_other_from_being_cleaned(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [make_pod(f"a{number}") for number in range(3 * CLEANED_AT_ONCE)]
    async with running(admission=reject_all()) as at:
        await at.say(PodOperation.ADD, *many)
        await trio.sleep(10)
        open_syncer = at.tasks._open_syncer

        def stumble(pod: Pod) -> PodSteps:
            if pod.metadata.name.endswith("7"):
                raise RuntimeError("a bug")
            return open_syncer(pod)

        monkeypatch.setattr(at.tasks, "_open_syncer", stumble)
        await at.say(PodOperation.REMOVE, *many)
        await trio.sleep(60)
        cleaned = {line for line in at.heard() if line.startswith("clean")}
        names = [pod.metadata.name for pod in many]
        assert cleaned == {f"clean {name}" for name in names if not name.endswith("7")}
        assert at.tasks.uids == []
