"""The mirrors of static pods: when they are made, made anew, and taken away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock

from tests.unit.status.api import UNREACHABLE, PodsApi
from trio_kubelet.k8s import Container, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.sources import PodOperation, PodUpdate, Source
from trio_kubelet.sources.mirrors import RETRY, MirrorPods, mirror_of

HASH, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
SOON = 0.1


def static_pod(name: str, uid: str, **spec: Any) -> Pod:
    """A static pod as the merge hands it out."""
    annotations = {HASH: uid, "kubernetes.io/config.source": "file", "mine": "yes"}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="n", uid=uid, annotations=annotations),
        spec=PodSpec(containers=(Container(name="c", image="web"),), **spec),
        status=PodStatus(phase="Pending"),
    )


@define
class Node:
    """A keeper of mirrors with the node around it."""

    api: PodsApi = field(factory=PodsApi)
    tasks: set[str] = field(factory=set)
    attached: dict[str, str | None] = field(factory=dict)
    watched: dict[str, Pod] = field(factory=dict)
    statuses: dict[str, PodStatus] = field(factory=dict)
    mirrors: MirrorPods = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.api.on_change = self._watch
        self.mirrors = MirrorPods(
            cast("Api", self.api),
            "Node-1",
            frozenset({Source.FILE}),
            lambda uid: uid not in self.tasks,
            self.statuses.get,
            self._attach,
        )

    def _watch(self, name: str, pod: Pod | None) -> None:
        if pod is None:
            self.mirrors.removed(self.watched.pop(name))
        elif MIRROR in pod.metadata.annotations:
            self.watched[name] = pod
            self.mirrors.changed(pod)

    def _attach(self, uid: str, mirror: Pod | None) -> None:
        self.attached[uid] = mirror.metadata.uid if mirror is not None else None

    def say(self, op: PodOperation, *pods: Pod, source: Source = Source.FILE) -> None:
        self.mirrors.static_changed(PodUpdate(op=op, pods=pods, source=source))

    def add(self, *pods: Pod) -> None:
        self.tasks |= {pod.metadata.uid for pod in pods}
        self.say(PodOperation.ADD, *pods)

    def report(self, pod: Pod, phase: str) -> None:
        status = self.statuses[pod.metadata.uid] = PodStatus(phase=phase)
        self.mirrors.status_changed(pod, status)

    def finish(self, uid: str) -> None:
        self.tasks.discard(uid)
        self.mirrors.released(uid)

    @property
    def shown(self) -> dict[str, str]:
        """By name: the hash that the mirror in the API shows."""
        return {n: p.metadata.annotations.get(MIRROR, "") for n, p in self.api.pods.items()}


@asynccontextmanager
async def running(*, synced: bool = True, registered: bool = True) -> AsyncIterator[Node]:
    node = Node()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.mirrors.run)
        if synced:
            node.mirrors.synced()
        if registered:
            node.mirrors.node_changed("node-uid")
        yield node
        nursery.cancel_scope.cancel()


def test_a_mirror_says_whose_it_is() -> None:
    pod = static_pod("web-node-1", "hash-1")
    mirror = mirror_of(pod, "Node-1", "node-uid")
    assert mirror.metadata.annotations == {**pod.metadata.annotations, MIRROR: "hash-1"}
    assert mirror.metadata.owner_references == (
        OwnerReference(
            api_version="v1", kind="Node", name="Node-1", uid="node-uid", controller=True
        ),
    )
    assert (mirror.metadata.uid, mirror.spec, mirror.status) == ("", pod.spec, PodStatus())


async def test_each_static_pod_gets_a_mirror(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.add(static_pod("web", "h1"), static_pod("dns", "h2"))
        await trio.sleep(SOON)
        assert node.shown == {"web": "h1", "dns": "h2"}
        assert set(node.attached) == {"h1", "h2"}
        assert all(node.attached.values())


@pytest.mark.parametrize(("synced", "registered"), [(False, True), (True, False)])
async def test_no_mirror_is_made_before_the_node_and_the_mirrors_are_known(
    autojump_clock: MockClock, synced: bool, registered: bool
) -> None:
    async with running(synced=synced, registered=registered) as node:
        node.add(static_pod("web", "h1"))
        await trio.sleep(3600)
        assert node.api.log == []
        node.mirrors.synced()
        node.mirrors.node_changed("node-uid")
        await trio.sleep(SOON)
        assert node.shown == {"web": "h1"}


async def test_a_mirror_that_is_there_is_kept(autojump_clock: MockClock) -> None:
    async with running(synced=False) as node:
        pod = static_pod("web", "h1")
        there = node.api.put(evolve(mirror_of(pod, "Node-1", "node-uid"), status=PodStatus()))
        node.add(pod)
        node.mirrors.synced()
        await trio.sleep(3600)
        assert node.api.log == []
        assert node.attached == {"h1": there.metadata.uid}


async def test_a_mirror_that_somebody_removes_is_made_again(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.add(static_pod("web", "h1"))
        await trio.sleep(SOON)
        first = node.attached["h1"]
        node.api.remove("web")
        await trio.sleep(SOON)
        assert node.shown == {"web": "h1"}
        assert node.attached["h1"] not in (None, first)


async def test_a_mirror_that_somebody_deletes_goes_and_is_made_again(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.add(static_pod("web", "h1"))
        await trio.sleep(SOON)
        node.api.mark_deleted("web")
        await trio.sleep(SOON)
        assert node.api.log == ["create web", "delete web 0", "create web"]
        assert node.api.pods["web"].metadata.deletion_timestamp is None


async def test_a_mirror_that_shows_another_manifest_waits_for_the_end_of_that_pod(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        old, new = static_pod("web", "h1"), static_pod("web", "h2")
        node.add(old)
        await trio.sleep(SOON)
        node.say(PodOperation.REMOVE, old)
        node.add(new)
        await trio.sleep(3600)
        assert node.shown == {"web": "h1"}
        node.finish("h1")
        await trio.sleep(SOON)
        assert node.shown == {"web": "h2"}
        assert (node.attached["h1"], bool(node.attached["h2"])) == (None, True)


async def test_a_mirror_goes_with_its_pod(autojump_clock: MockClock) -> None:
    async with running() as node:
        pod = static_pod("web", "h1")
        node.add(pod)
        await trio.sleep(SOON)
        node.say(PodOperation.REMOVE, pod)
        await trio.sleep(3600)
        assert node.shown == {"web": "h1"}
        node.finish("h1")
        await trio.sleep(SOON)
        assert (node.shown, node.attached) == ({}, {"h1": None})


async def test_while_a_pod_ends_its_mirror_shows_it(autojump_clock: MockClock) -> None:
    async with running() as node:
        pod = static_pod("web", "h1")
        node.add(pod)
        await trio.sleep(SOON)
        node.say(PodOperation.REMOVE, pod)
        node.attached.clear()
        node.api.put(evolve(node.api.pods["web"], status=PodStatus(phase="Running")))
        assert bool(node.attached["h1"])


async def test_a_pod_that_ended_and_runs_again_gets_another_mirror(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        pod = static_pod("web", "h1", restart_policy="OnFailure")
        node.add(pod)
        await trio.sleep(SOON)
        ended = node.api.put(evolve(node.api.pods["web"], status=PodStatus(phase="Succeeded")))
        node.report(pod, "Succeeded")
        await trio.sleep(SOON)
        assert node.api.pods["web"] == ended
        node.report(pod, "Running")
        await trio.sleep(SOON)
        assert node.api.log == ["create web", "delete web 0", "create web"]


async def test_a_mirror_that_turns_out_to_show_an_end_is_made_anew(
    autojump_clock: MockClock,
) -> None:
    """Nobody could tell of the mirror when the pod began to run again."""
    async with running(synced=False) as node:
        pod = static_pod("web", "h1")
        node.add(pod)
        node.report(pod, "Running")
        mirror = mirror_of(pod, "Node-1", "node-uid")
        node.api.put(evolve(mirror, status=PodStatus(phase="Failed")))
        node.mirrors.synced()
        await trio.sleep(SOON)
        assert node.api.log == ["delete web 0", "create web"]


async def test_orphans_go_once_the_sources_have_spoken(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.api.put(mirror_of(static_pod("old", "h0"), "Node-1", "node-uid"))
        await trio.sleep(3600)
        node.say(PodOperation.ADD, source=Source.HTTP)
        await trio.sleep(3600)
        assert node.shown == {"old": "h0"}
        node.say(PodOperation.ADD)
        await trio.sleep(SOON)
        assert node.shown == {}


async def test_a_mark_alone_does_not_send_a_status_astray(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.say(PodOperation.ADD)
        forged = static_pod("forged", "uid-of-another-pod")
        node.api.put(mirror_of(forged, "Node-1", "node-uid"))
        await trio.sleep(SOON)
        assert node.attached == {}


async def test_updates_of_the_api_are_not_static_pods(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.say(PodOperation.ADD, static_pod("web", "h1"), source=Source.API)
        await trio.sleep(3600)
        assert node.api.log == []


@pytest.mark.parametrize(
    "fault",
    [
        UNREACHABLE,
        "lost",
        ApiError(403, "Forbidden", "the authorizer does not know yet"),
        ApiError(409, "Conflict", "the object has been modified"),
        ApiError(500, "InternalError", "no"),
    ],
)
async def test_what_failed_is_done_again(autojump_clock: MockClock, fault: ApiError | str) -> None:
    async with running() as node:
        pod = static_pod("web", "h1")
        node.api.faults = [fault, fault]
        node.add(pod)
        await trio.sleep(3)
        assert node.shown == {"web": "h1"}
        node.api.faults = [fault, fault]
        node.say(PodOperation.REMOVE, pod)
        node.finish("h1")
        await trio.sleep(3)
        assert node.shown == {}


async def test_a_namespace_that_is_not_there_yet_is_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.api.faults = [ApiError(404, "NotFound", 'namespaces "n" not found')] * 3
        node.add(static_pod("web", "h1"))
        await trio.sleep(10)
        assert node.shown == {"web": "h1"}


async def test_one_refused_mirror_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.api.put(evolve(static_pod("web", "x"), metadata=ObjectMeta(name="web", uid="x")))
        node.add(static_pod("web", "h1"), static_pod("dns", "h2"))
        await trio.sleep(SOON)
        assert node.shown == {"web": "", "dns": "h2"}
        del node.api.pods["web"]
        await trio.sleep(2 * RETRY.cap_seconds)
        assert node.shown == {"web": "h1", "dns": "h2"}


async def test_after_an_outage_the_mirrors_are_made_at_once(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.api.faults = [UNREACHABLE] * 10_000
        node.add(static_pod("web", "h1"))
        await trio.sleep(24 * 3600)
        node.api.faults = []
        node.mirrors.synced()
        await trio.sleep(SOON)
        assert node.shown == {"web": "h1"}


async def test_a_node_that_is_registered_anew_owns_the_mirrors_from_then_on(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.add(static_pod("web", "h1"))
        await trio.sleep(SOON)
        node.mirrors.node_changed("another-uid")
        node.api.remove("web")
        await trio.sleep(SOON)
        (owner,) = node.api.pods["web"].metadata.owner_references
        assert owner.uid == "another-uid"


async def test_while_there_is_no_node_no_mirror_is_made_again(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.add(static_pod("web", "h1"))
        await trio.sleep(SOON)
        node.mirrors.node_changed("")
        node.api.remove("web")
        node.add(static_pod("dns", "h2"))
        await trio.sleep(3600)
        assert node.shown == {}
        node.mirrors.node_changed("another-uid")
        await trio.sleep(SOON)
        assert node.shown == {"web": "h1", "dns": "h2"}


async def test_a_mirror_that_is_deleted_goes_although_there_is_no_node(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.add(static_pod("web", "h1"))
        await trio.sleep(SOON)
        node.mirrors.node_changed("")
        node.api.mark_deleted("web")
        await trio.sleep(SOON)
        assert node.shown == {}
