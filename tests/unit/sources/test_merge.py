from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import (
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Time,
)
from trio_kubelet.sources import PodOperation, PodUpdate, Source, SourceMerge
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent

ADD, UPDATE, DELETE, REMOVE, RECONCILE = (
    PodOperation.ADD,
    PodOperation.UPDATE,
    PodOperation.DELETE,
    PodOperation.REMOVE,
    PodOperation.RECONCILE,
)
SEEN = "kubernetes.io/config.seen"


class Clock:
    def __init__(self) -> None:
        self.ns = 1_767_225_600_123_456_700

    def now_ns(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events() -> list[RecordedEvent]:
    return []


@pytest.fixture
def merge(clock: Clock, events: list[RecordedEvent]) -> SourceMerge:
    recorder = EventRecorder(Journal(clock), "node")
    recorder.on_event.add(events.append)
    return SourceMerge(clock, recorder)


def pod(uid: str, name: str = "", **spec: Any) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name or uid, namespace="default", uid=uid), spec=PodSpec(**spec)
    )


def changed(given_pod: Pod, **metadata: Any) -> Pod:
    return evolve(given_pod, metadata=evolve(given_pod.metadata, **metadata))


def ops(updates: list[PodUpdate]) -> list[tuple[PodOperation, list[str]]]:
    return [(update.op, [each.metadata.uid for each in update.pods]) for update in updates]


def test_new_pods_are_added(merge: SourceMerge) -> None:
    updates = merge.apply(Source.FILE, [pod("a"), pod("b")])
    assert ops(updates) == [(ADD, ["a", "b"])]
    assert updates[0].source is Source.FILE


def test_the_first_set_is_told_even_if_it_is_empty(merge: SourceMerge) -> None:
    assert ops(merge.apply(Source.HTTP, [])) == [(ADD, [])]
    assert merge.apply(Source.HTTP, []) == []


def test_the_same_set_again_changes_nothing(merge: SourceMerge) -> None:
    merge.apply(Source.FILE, [pod("a")])
    assert merge.apply(Source.FILE, [pod("a")]) == []


def test_pods_carry_their_source_and_when_they_were_first_seen(
    merge: SourceMerge, clock: Clock
) -> None:
    (added,) = merge.apply(Source.FILE, [pod("a")])
    first = "2026-01-01T00:00:00.1234567Z"
    assert added.pods[0].metadata.annotations == {
        "kubernetes.io/config.source": "file",
        SEEN: first,
    }
    clock.ns += 10**9
    (updated,) = merge.apply(Source.FILE, [pod("a", hostname="h")])
    assert updated.pods[0].metadata.annotations[SEEN] == first


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"a": "b"}},
        {"annotations": {"a": "b"}},
        {"deletion_grace_period_seconds": 3},
    ],
)
def test_a_change_of_what_is_asked_for_is_an_update(
    merge: SourceMerge, change: dict[str, Any]
) -> None:
    merge.apply(Source.API, [pod("a")])
    assert ops(merge.apply(Source.API, [changed(pod("a"), **change)])) == [(UPDATE, ["a"])]


def test_a_change_of_the_spec_is_an_update(merge: SourceMerge) -> None:
    merge.apply(Source.API, [pod("a")])
    new = pod("a", containers=(Container(name="c", image="i"),))
    (update,) = merge.apply(Source.API, [new])
    assert (update.op, update.pods[0].spec) == (UPDATE, new.spec)


@pytest.mark.parametrize(
    "change",
    [
        {"resource_version": "7"},
        {"annotations": {"kubernetes.io/config.mirror": "x", SEEN: "never"}},
    ],
)
def test_the_nodes_own_marks_are_no_change(merge: SourceMerge, change: dict[str, Any]) -> None:
    merge.apply(Source.API, [pod("a")])
    assert merge.apply(Source.API, [changed(pod("a"), **change)]) == []


def test_an_annotation_that_went_is_an_update(merge: SourceMerge) -> None:
    merge.apply(Source.API, [changed(pod("a"), annotations={"a": "b"})])
    assert ops(merge.apply(Source.API, [pod("a")])) == [(UPDATE, ["a"])]


def test_a_deletion_is_told_once_and_gracefully(merge: SourceMerge) -> None:
    merge.apply(Source.API, [pod("a")])
    deleted = changed(pod("a"), deletion_timestamp=Time.from_ns(0))
    assert ops(merge.apply(Source.API, [deleted])) == [(DELETE, ["a"])]
    assert merge.apply(Source.API, [deleted]) == []


def test_a_pod_that_is_gone_is_removed(merge: SourceMerge) -> None:
    merge.apply(Source.FILE, [pod("a"), pod("b")])
    assert ops(merge.apply(Source.FILE, [pod("b")])) == [(REMOVE, ["a"])]


def test_removals_come_before_what_takes_their_place(merge: SourceMerge) -> None:
    merge.apply(Source.FILE, [pod("old", "web")])
    updates = merge.apply(Source.FILE, [pod("new", "web")])
    assert ops(updates) == [(REMOVE, ["old"]), (ADD, ["new"])]


def test_a_change_of_the_status_alone_is_to_be_reconciled(merge: SourceMerge) -> None:
    merge.apply(Source.API, [pod("a")])
    other = evolve(pod("a"), status=PodStatus(phase="Running"))
    assert ops(merge.apply(Source.API, [other])) == [(RECONCILE, ["a"])]
    both = evolve(pod("a", hostname="h"), status=PodStatus(phase="Failed"))
    assert ops(merge.apply(Source.API, [both])) == [(UPDATE, ["a"])]


def test_sources_do_not_see_each_other(merge: SourceMerge) -> None:
    merge.apply(Source.FILE, [pod("a")])
    assert ops(merge.apply(Source.HTTP, [pod("b")])) == [(ADD, ["b"])]
    assert merge.apply(Source.FILE, [pod("a")]) == []


def test_of_two_pods_with_one_name_the_first_wins(
    merge: SourceMerge, events: list[RecordedEvent]
) -> None:
    updates = merge.apply(Source.API, [pod("a", "web"), pod("b", "web")])
    assert ops(updates) == [(ADD, ["a"])]
    (event,) = events
    assert event.reason == "FailedValidation"
    assert event.message == (
        'Error validating pod web_default(b) from api due to duplicate pod name "web", ignoring'
    )


def test_of_two_pods_with_one_uid_the_first_wins(
    merge: SourceMerge, events: list[RecordedEvent]
) -> None:
    assert ops(merge.apply(Source.API, [pod("a", "x"), pod("a", "y")])) == [(ADD, ["a"])]
    assert 'duplicate pod UID "a"' in events[0].message


def test_one_pod_of_a_set_may_change_alone(merge: SourceMerge) -> None:
    merge.apply(Source.API, [pod("a"), pod("b")])
    assert ops(merge.change(Source.API, pod("c"))) == [(ADD, ["c"])]
    assert ops(merge.change(Source.API, pod("a", hostname="h"))) == [(UPDATE, ["a"])]
    assert merge.change(Source.API, pod("b")) == []
    assert ops(merge.remove(Source.API, pod("b"))) == [(REMOVE, ["b"])]
    assert merge.remove(Source.API, pod("b")) == []
    assert merge.apply(Source.API, [pod("a", hostname="h"), pod("c")]) == []


def test_a_pod_that_takes_over_a_name_ends_the_one_that_had_it(merge: SourceMerge) -> None:
    merge.apply(Source.API, [pod("old", "web"), pod("other")])
    assert ops(merge.change(Source.API, pod("new", "web"))) == [(REMOVE, ["old"]), (ADD, ["new"])]
    assert merge.remove(Source.API, pod("old", "web")) == []


def test_the_deletion_of_a_pod_that_changes_alone_is_graceful(merge: SourceMerge) -> None:
    merge.apply(Source.API, [pod("a")])
    deleted = changed(pod("a"), deletion_timestamp=Time.from_ns(0))
    assert ops(merge.change(Source.API, deleted)) == [(DELETE, ["a"])]


uids = st.lists(st.sampled_from("abcdef"), unique=True)
pods = uids.flatmap(
    lambda chosen: st.tuples(*(st.sampled_from([pod(u), pod(u, hostname="x")]) for u in chosen))
)


@given(st.lists(pods, min_size=1, max_size=8))
def test_whoever_follows_the_updates_has_what_the_source_said_last(
    sets: list[tuple[Pod, ...]],
) -> None:
    clock = Clock()
    merge = SourceMerge(clock, EventRecorder(Journal(clock), "node"))
    followed: dict[str, Pod] = {}
    for said in sets:
        for update in merge.apply(Source.FILE, said):
            for each in update.pods:
                uid = each.metadata.uid
                assert (uid in followed) == (update.op is not ADD)
                if update.op is REMOVE:
                    del followed[uid]
                else:
                    followed[uid] = each
        assert {u: p.spec for u, p in followed.items()} == {p.metadata.uid: p.spec for p in said}


@pytest.mark.parametrize("gate", [True, False])
def test_pods_have_resources_as_a_whole_while_the_gate_is_on(clock: Clock, gate: bool) -> None:
    recorder = EventRecorder(Journal(clock), "node")
    merge = SourceMerge(clock, recorder, pod_level_resources=gate)
    resources = ResourceRequirements(limits={"cpu": Quantity(1)})
    asking = pod("a", resources=resources)
    (update,) = merge.apply(Source.FILE, [asking])
    assert update.pods[0].spec.resources == (resources if gate else None)
    assert merge.apply(Source.FILE, [asking]) == []
    (change,) = merge.change(Source.FILE, evolve(asking, spec=evolve(asking.spec, hostname="x")))
    assert change.pods[0].spec.resources == (resources if gate else None)
