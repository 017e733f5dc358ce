"""What those are told who watch pods, also those who begin late or take too long."""

from pathlib import Path

import pytest
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from tests.pod_protobuf import read_pod
from tests.unit.k8s.test_protobuf import FULL_POD
from tests.unit.ports.pods_node import (
    ADDED,
    ALL_ADDED,
    DELETED,
    MODIFIED,
    PodsNode,
    a_pod,
)
from trio_kubelet.k8s import ObjectMeta, Pod, PodStatus
from trio_kubelet.ports import pod_events
from trio_kubelet.ports.pod_events import EventWindow, pod_change
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs import v1alpha1 as wire

RUNNING = evolve(a_pod("web"), status=PodStatus(phase="Running"))


@pytest.fixture
def node(tmp_path: Path) -> PodsNode:
    return PodsNode(tmp_path)


def an_event(size: int = 1) -> wire.WatchPodsEvent:
    return wire.WatchPodsEvent(pod=b"x" * size)


@pytest.mark.parametrize(
    ("before", "after", "event"),
    [
        (None, a_pod("web"), ("ADDED", a_pod("web"))),
        (a_pod("web"), RUNNING, ("MODIFIED", RUNNING)),
        (a_pod("web"), a_pod("web"), None),
        (None, None, None),
        (
            evolve(RUNNING, metadata=evolve(RUNNING.metadata, labels={"app": "web"})),
            None,
            ("DELETED", a_pod("web")),
        ),
    ],
    ids=["came", "changed", "stayed", "came and went", "went"],
)
def test_the_event_between_two_versions_of_a_pod(
    before: Pod | None, after: Pod | None, event: tuple[str, Pod] | None
) -> None:
    change = pod_change(before, after)
    assert (change and (change[0].name, change[1])) == event


def test_the_window_has_the_newest_events_only() -> None:
    window = EventWindow(max_events=2, max_bytes=100)
    events = [an_event() for _ in range(4)]
    for event in events:
        window.append(event)
    assert window.end == 4
    assert [window.get(number) for number in range(4)] == [None, None, *events[2:]]


def test_the_window_is_bounded_by_bytes_but_always_has_the_newest_event() -> None:
    window = EventWindow(max_events=10, max_bytes=100)
    sizes = (60, 40, 1, 1000)
    events = [an_event(size) for size in sizes]
    seen = []
    for event in events:
        window.append(event)
        seen.append([number for number in range(window.end) if window.get(number) is not None])
    assert seen == [[0], [0, 1], [1, 2], [3]]
    assert window.get(3) is events[3]


def test_numbers_go_on_in_a_window_that_was_cleared() -> None:
    window = EventWindow(max_events=2, max_bytes=100)
    window.append(an_event(90))
    window.clear()
    later = [an_event(50), an_event(50)]
    for event in later:
        window.append(event)
    assert [window.get(number) for number in range(3)] == [None, *later]


async def test_a_watch_tells_of_all_pods_and_then_of_what_becomes_of_them(node: PodsNode) -> None:
    node.add("a", "b")
    node.report("a", "Running")
    async with node.telling(), node.watched() as watcher:
        assert {await watcher.told(), await watcher.told()} == {
            (ADDED, "a", "Running"),
            (ADDED, "b", ""),
        }
        assert await watcher.told() == (ALL_ADDED, "", "")
        node.add("c")
        assert await watcher.told() == (ADDED, "c", "")
        node.report("c", "Running")
        assert await watcher.told() == (MODIFIED, "c", "Running")
        node.change("a", "here")
        assert await watcher.told() == (MODIFIED, "a", "Running")
        assert watcher.known["uid-a"].spec.node_name == "here"
        node.remove("a")
        event = await watcher.event()
        assert event.type == wire.EventType.DELETED
        assert read_pod(event.pod) == a_pod("a")


async def test_a_node_without_pods_is_told_of_at_once(node: PodsNode) -> None:
    async with node.telling(), node.watched() as watcher:
        assert await watcher.told() == (ALL_ADDED, "", "")


async def test_of_changes_that_come_at_once_the_last_is_told(node: PodsNode) -> None:
    async with node.telling(), node.watched() as watcher:
        await watcher.first()
        node.add("gone")
        node.add("web")
        node.report("web", "Pending")
        node.report("web", "Running")
        node.remove("gone")
        assert await watcher.told() == (ADDED, "web", "Running")
        node.report("web", "Running")
        node.change("web", "")
        node.add("last")
        assert await watcher.told() == (ADDED, "last", "")


async def test_a_pod_that_was_there_before_the_watch_is_among_the_first(node: PodsNode) -> None:
    """Also if it came a moment ago, and nobody was told of it yet."""
    async with node.telling(), node.watched() as earlier:
        await earlier.first()
        node.add("a", "b", "c")
        node.report("b", "Running")
        async with node.watched() as later:
            assert {pod.metadata.name for pod in (await later.first()).values()} == {"a", "b", "c"}
            assert later.known["uid-b"].status.phase == "Running"
            node.add("d")
            assert await later.told() == (ADDED, "d", "")


async def test_all_who_watch_get_one_event_that_was_encoded_once(node: PodsNode) -> None:
    async with node.telling(), node.watched() as one, node.watched() as other:
        await one.first()
        await other.first()
        node.add("web")
        assert await one.event() is await other.event()


async def test_a_watch_that_begins_when_another_has_ended_misses_nothing(node: PodsNode) -> None:
    async with node.telling():
        async with node.watched() as first:
            await first.first()
            node.add("a")
            assert await first.told() == (ADDED, "a", "")
        node.add("b")
        await wait_all_tasks_blocked()
        async with node.watched() as second:
            assert set(await second.first()) == {"uid-a", "uid-b"}
            node.remove("a")
            assert await second.told() == (DELETED, "a", "")


async def test_who_takes_too_long_loses_the_watch_and_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_events, "MAX_EVENTS", 3)
    node, dropped = PodsNode(tmp_path), list[int]()
    node.events.on_dropped.add(dropped.append)
    async with node.telling(), node.watched() as slow, node.watched() as quick:
        await slow.first()
        await quick.first()
        for name in "abcde":
            node.add(name)
            assert await quick.told() == (ADDED, name, "")
        with pytest.raises(RpcError, match="5 were dropped") as error:
            await slow.event()
        assert error.value.code is Code.RESOURCE_EXHAUSTED
        assert dropped == [5]
        node.add("f")
        assert await quick.told() == (ADDED, "f", "")


async def test_a_pod_that_cannot_be_encoded_keeps_no_other_from_being_told_of(
    node: PodsNode,
) -> None:
    async with node.telling(), node.watched() as watcher:
        await watcher.first()
        broken = ObjectMeta(name="broken", uid="uid-broken", labels={"a": "\ud800"})
        node.store.add(Pod(metadata=broken), 0.0)
        node.add("web")
        assert await watcher.told() == (ADDED, "web", "")


async def test_many_large_pods_are_told_of_in_short_turns(node: PodsNode) -> None:
    """Each turn of each test is measured; all fields of all pods are set."""
    for number in range(250):
        metadata = ObjectMeta(name=f"p{number}", namespace="n", uid=f"uid-p{number}")
        node.store.add(evolve(FULL_POD, metadata=metadata), 0.0)
    async with node.telling(), node.watched() as watcher:
        count = 0
        while (await watcher.event()).type != wire.EventType.INITIAL_SYNC_COMPLETE:
            count += 1
        assert count == 250
        for number in range(250):
            node.report(f"p{number}", "Running")
        for _ in range(250):
            assert (await watcher.event()).type == wire.EventType.MODIFIED
