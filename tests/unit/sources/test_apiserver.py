"""The pods of the API: what is handed out, when, and to whom."""

from collections.abc import Iterable
from typing import Any

import pytest
from attrs import define, evolve, field
from structlog.testing import capture_logs

from tests.unit.sources.test_merge import Clock, changed, ops, pod
from trio_kubelet.k8s import Container, Pod, PodSpec, PodStatus, Time, Volume
from trio_kubelet.k8s.client import ListSynced, ObjectChanged, ObjectRemoved, WatchEvent
from trio_kubelet.sources import PodOperation, PodUpdate, SourceMerge
from trio_kubelet.sources.apiserver import ApiPods, unusable_names
from trio_kubelet.telemetry import EventRecorder, Journal

ADD, UPDATE, DELETE, REMOVE, RECONCILE = (
    PodOperation.ADD,
    PodOperation.UPDATE,
    PodOperation.DELETE,
    PodOperation.REMOVE,
    PodOperation.RECONCILE,
)


@define
class Follower:
    heard: list[str] = field(factory=list)

    def changed(self, pod: Pod) -> None:
        self.heard.append(f"+{pod.metadata.uid}")

    def removed(self, pod: Pod) -> None:
        self.heard.append(f"-{pod.metadata.uid}")

    def synced(self) -> None:
        self.heard.append("synced")


@define
class World:
    pods: Follower = field(factory=Follower)
    mirrors: Follower = field(factory=Follower)
    updates: list[PodUpdate] = field(factory=list)
    source: ApiPods = field(init=False)

    def __attrs_post_init__(self) -> None:
        clock = Clock()
        merge = SourceMerge(clock, EventRecorder(Journal(clock), "node"))
        self.source = ApiPods(self.send, merge=merge, pods=self.pods, mirrors=self.mirrors)

    async def send(self, updates: Iterable[PodUpdate]) -> None:
        self.updates.extend(updates)

    async def tell(self, *events: WatchEvent[Pod]) -> list[tuple[PodOperation, list[str]]]:
        self.updates.clear()
        for event in events:
            await self.source.take(event)
        return ops(self.updates)


def mirror(uid: str) -> Pod:
    return changed(pod(uid), annotations={"kubernetes.io/config.mirror": "hash"})


async def test_nothing_is_handed_out_before_all_is_known() -> None:
    world = World()
    assert await world.tell(ObjectChanged(pod("a")), ObjectChanged(pod("b"))) == []
    assert await world.tell(ListSynced()) == [(ADD, ["a", "b"])]


async def test_what_came_and_went_before_all_was_known_never_was() -> None:
    world = World()
    events = (
        ObjectChanged(pod("a")),
        ObjectChanged(pod("b")),
        ObjectRemoved(pod("a")),
        ListSynced(),
    )
    assert await world.tell(*events) == [(ADD, ["b"])]


async def test_a_node_without_pods_has_spoken_all_the_same() -> None:
    assert await World().tell(ListSynced()) == [(ADD, [])]


async def test_from_then_on_each_change_is_told_at_once() -> None:
    world = World()
    await world.tell(ObjectChanged(pod("a")), ListSynced())
    assert await world.tell(ObjectChanged(pod("b"))) == [(ADD, ["b"])]
    assert await world.tell(ObjectChanged(pod("b", hostname="h"))) == [(UPDATE, ["b"])]
    shown = evolve(pod("a"), status=PodStatus(phase="Running"))
    assert await world.tell(ObjectChanged(shown)) == [(RECONCILE, ["a"])]
    deleted = changed(pod("b", hostname="h"), deletion_timestamp=Time.from_ns(0))
    assert await world.tell(ObjectChanged(deleted)) == [(DELETE, ["b"])]
    assert await world.tell(ObjectRemoved(deleted)) == [(REMOVE, ["b"])]
    assert await world.tell(ListSynced()) == []


async def test_a_pod_of_the_same_name_ends_the_one_before() -> None:
    world = World()
    await world.tell(ObjectChanged(pod("old", "web")), ListSynced())
    events = (ObjectChanged(pod("new", "web")), ObjectRemoved(pod("old", "web")))
    assert await world.tell(*events) == [(REMOVE, ["old"]), (ADD, ["new"])]


async def test_pods_are_those_of_the_api_whatever_they_say() -> None:
    world = World()
    lying = changed(pod("a"), annotations={"kubernetes.io/config.source": "file"})
    await world.tell(ObjectChanged(lying), ListSynced())
    assert world.updates[0].pods[0].metadata.annotations["kubernetes.io/config.source"] == "api"


@pytest.mark.parametrize("listed", [False, True])
async def test_mirrors_are_shown_to_their_keeper_and_never_run(listed: bool) -> None:
    world = World()
    if listed:
        await world.tell(ListSynced())
        world.mirrors.heard.clear()
    assert [op for op in await world.tell(ObjectChanged(mirror("m"))) if op[1]] == []
    assert await world.tell(ObjectRemoved(mirror("m"))) == []
    assert (world.mirrors.heard, "+m" in world.pods.heard) == (["+m", "-m"], False)


async def test_followers_hear_of_a_pod_before_it_is_handed_out() -> None:
    world = World()
    heard_first: list[list[str]] = []

    async def send(updates: Iterable[PodUpdate]) -> None:
        heard_first.append(list(world.pods.heard))

    world.source._send = send
    await world.tell(ObjectChanged(pod("a")), ListSynced(), ObjectChanged(pod("b")))
    assert heard_first == [["+a", "synced"], ["+a", "synced", "+b"]]


@pytest.mark.parametrize(
    ("wrong", "field_name"),
    [
        ({"uid": "../../etc"}, "metadata.uid"),
        ({"uid": ""}, "metadata.uid"),
        ({"name": "a/b"}, "metadata.name"),
        ({"namespace": ""}, "metadata.namespace"),
        ({"namespace": ".."}, "metadata.namespace"),
    ],
)
async def test_a_pod_whose_names_lead_elsewhere_is_named_and_left_out(
    wrong: dict[str, Any], field_name: str
) -> None:
    world = World()
    bad = pod("bad")
    bad = evolve(bad, metadata=evolve(bad.metadata, **wrong))
    with capture_logs() as logs:
        assert await world.tell(ObjectChanged(bad), ObjectChanged(pod("a")), ListSynced()) == [
            (ADD, ["a"])
        ]
    (entry,) = (entry for entry in logs if entry["log_level"] == "warning")
    assert field_name in entry["error"]
    assert entry["uid"] == bad.metadata.uid
    assert world.pods.heard == ["+a", "synced"]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (PodSpec(containers=(Container(name="../c"),)), "spec.containers[0].name: Invalid value"),
        (PodSpec(volumes=(Volume(name="a/b"),)), "spec.volumes[0].name: Invalid value"),
        (
            PodSpec(containers=(Container(name="c"),), init_containers=(Container(name="c"),)),
            'spec.containers: Duplicate value: "c"',
        ),
        (
            PodSpec(volumes=(Volume(name="v"), Volume(name="v"))),
            'spec.volumes: Duplicate value: "v"',
        ),
    ],
)
def test_names_within_a_pod_are_parts_of_paths_and_tell_things_apart(
    spec: PodSpec, error: str
) -> None:
    (found,) = unusable_names(evolve(pod("a"), spec=spec))
    assert str(found).startswith(error)
