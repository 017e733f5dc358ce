"""Pods in, statuses out: source, writer and mirrors against an API server in memory.

The node's other half is a few lines here: it reports a status for each pod that it is given.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
from attrs import define, evolve, field
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.k8s import (
    Container,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
)
from trio_kubelet.k8s.client import Api
from trio_kubelet.k8s.kinds import PODS
from trio_kubelet.sources import PodOperation, PodUpdate, Source, SourceMerge, watch_api_pods
from trio_kubelet.sources.mirrors import MirrorPods
from trio_kubelet.status import StatusWriter
from trio_kubelet.telemetry import EventRecorder, Journal

NODE = "node-1"
SOON = 5.0
RUNNING = PodStatus(phase="Running", conditions=(PodCondition(type="Ready", status="True"),))
ENDED = PodStatus(phase="Succeeded", container_statuses=(ContainerStatus(name="c"),))


@define
class Agent:
    """The parts under test, with what the agent hangs between them."""

    api: Api
    statuses: dict[str, PodStatus] = field(factory=dict)
    over: set[str] = field(factory=set)
    updates: list[tuple[PodOperation, str]] = field(factory=list)
    pods: dict[str, Pod] = field(factory=dict)
    merge: SourceMerge = field(init=False)
    writer: StatusWriter = field(init=False)
    mirrors: MirrorPods = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.merge = SourceMerge(TrioClock(), EventRecorder(Journal(TrioClock()), NODE))
        self.writer = StatusWriter(self.api, self.statuses.get, self.over.__contains__)
        self.mirrors = MirrorPods(
            self.api,
            NODE,
            frozenset({Source.FILE}),
            lambda uid: uid not in self.pods or uid in self.over,
            self.statuses.get,
            self.writer.mirror_changed,
        )

    async def send(self, updates: Iterable[PodUpdate]) -> None:
        for update in updates:
            for pod in update.pods:
                self.updates.append((update.op, pod.metadata.name))
                if update.op is PodOperation.REMOVE:
                    del self.pods[pod.metadata.uid]
                else:
                    self.pods[pod.metadata.uid] = pod
            self.mirrors.static_changed(update)

    async def take_static(self, *pods: Pod) -> None:
        await self.send(self.merge.apply(Source.FILE, pods))

    def named(self, name: str) -> Pod:
        return next(pod for pod in self.pods.values() if pod.metadata.name == name)

    def report(self, name: str, status: PodStatus) -> None:
        pod = self.named(name)
        self.statuses[pod.metadata.uid] = status
        self.writer.status_changed(pod, status)

    def finish(self, name: str) -> None:
        uid = self.named(name).metadata.uid
        self.over.add(uid)
        self.writer.look_at(uid)
        self.mirrors.released(uid)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.writer.run)
            await nursery.start(self.mirrors.run)
            self.mirrors.node_changed("node-uid")
            nursery.start_soon(self._watch)
            task_status.started()

    async def _watch(self) -> None:
        await watch_api_pods(
            self.api, NODE, self.send, merge=self.merge, pods=self.writer, mirrors=self.mirrors
        )


@asynccontextmanager
async def running(server: ApiServer, *pods: str) -> AsyncIterator[Agent]:
    """An agent beside pods that are bound to its node."""
    for name in pods:
        bind(server, name)
    agent = Agent(server.client())
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        await trio.sleep(SOON)
        yield agent
        nursery.cancel_scope.cancel()


def bind(server: ApiServer, name: str) -> Pod:
    spec = PodSpec(containers=(Container(name="c", image="i"),))
    server.create(PODS, Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec))
    server.bind(name, NODE)
    return server.get(PODS, name)


def phases(server: ApiServer) -> dict[str, str]:
    return {pod.metadata.name: pod.status.phase for pod in server.all(PODS)}


def static_pod(name: str, uid: str) -> Pod:
    hashed = {"kubernetes.io/config.hash": uid}
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid, annotations=hashed),
        spec=PodSpec(node_name=NODE, containers=(Container(name="c", image="i"),)),
    )


async def test_pods_of_this_node_come_in_and_their_statuses_go_out(
    autojump_clock: MockClock,
) -> None:
    server = ApiServer()
    async with running(server, "a") as agent:
        bind(server, "b")
        spec = PodSpec(node_name="other", containers=(Container(name="c", image="i"),))
        server.create(PODS, Pod(metadata=ObjectMeta(name="elsewhere"), spec=spec))
        await trio.sleep(SOON)
        assert agent.updates == [(PodOperation.ADD, "a"), (PodOperation.ADD, "b")]
        agent.report("a", RUNNING)
        agent.report("b", RUNNING)
        await trio.sleep(SOON)
        assert phases(server) == {"a": "Running", "b": "Running", "elsewhere": "Pending"}


async def test_the_schedulers_condition_survives(autojump_clock: MockClock) -> None:
    server = ApiServer()
    async with running(server, "a") as agent:
        others = PodCondition(type="x/gate", status="True")
        pod = server.get(PODS, "a")
        status = evolve(pod.status, conditions=(*pod.status.conditions, others))
        server.update(PODS, evolve(pod, status=status), subresource="status")
        own = (*RUNNING.conditions, PodCondition(type="PodScheduled", status="True"))
        agent.report("a", evolve(RUNNING, conditions=own))
        await trio.sleep(SOON)
        before, after = pod.status.conditions, server.get(PODS, "a").status.conditions
        assert [c.type for c in after] == ["x/gate", "Ready", "PodScheduled"]
        assert after[-1].last_transition_time == before[0].last_transition_time


async def test_a_pod_is_deleted_when_nothing_of_it_is_left(autojump_clock: MockClock) -> None:
    server = ApiServer()
    async with running(server, "a") as agent:
        agent.report("a", RUNNING)
        await trio.sleep(SOON)
        server.delete(PODS, "a")
        await trio.sleep(SOON)
        assert agent.updates[-1] == (PodOperation.DELETE, "a")
        agent.report("a", ENDED)
        await trio.sleep(SOON)
        assert phases(server) == {"a": "Succeeded"}
        agent.finish("a")
        await trio.sleep(SOON)
        assert phases(server) == {}
        assert agent.updates[-1] == (PodOperation.REMOVE, "a")


async def test_a_pod_that_is_made_again_under_its_name_is_another_one(
    autojump_clock: MockClock,
) -> None:
    server = ApiServer()
    async with running(server, "a") as agent:
        agent.report("a", RUNNING)
        server.drop_watches()
        server.delete(PODS, "a", grace_seconds=0)
        bind(server, "a")
        await trio.sleep(SOON)
        assert agent.updates[1:] == [(PodOperation.REMOVE, "a"), (PodOperation.ADD, "a")]
        assert phases(server) == {"a": "Pending"}


async def test_nothing_is_lost_in_an_outage_of_an_hour(autojump_clock: MockClock) -> None:
    server = ApiServer()
    names = [f"p{i}" for i in range(20)]
    async with running(server, *names) as agent:
        server.delete(PODS, "p0")
        await trio.sleep(SOON)
        server.go_away()
        for name in names:
            agent.report(name, PodStatus(phase="Pending"))
        await trio.sleep(1800)
        for name in names:
            agent.report(name, RUNNING)
        agent.report("p0", ENDED)
        agent.finish("p0")
        await trio.sleep(1800)
        server.come_back()
        await server.until(lambda: set(phases(server).values()) == {"Running"}, seconds=40)
        assert len(phases(server)) == 19


async def test_a_new_agent_has_nothing_to_say_of_what_did_not_change(
    autojump_clock: MockClock,
) -> None:
    server = ApiServer()
    async with running(server, "a") as agent:
        agent.report("a", RUNNING)
        await trio.sleep(SOON)
    asked = len(server.requests)
    async with running(server) as agent:
        agent.report("a", RUNNING)
        await trio.sleep(600)
    assert {each.verb for each in server.requests[asked:]} <= {"list", "watch"}


async def test_each_static_pod_shows_in_the_api_with_its_status(autojump_clock: MockClock) -> None:
    server = ApiServer()
    async with running(server) as agent:
        await agent.take_static(static_pod("web", "h1"))
        agent.report("web", RUNNING)
        await trio.sleep(SOON)
        mirror = server.get(PODS, "web")
        assert mirror.status.phase == "Running"
        assert mirror.metadata.annotations["kubernetes.io/config.source"] == "file"
        assert agent.updates == [(PodOperation.ADD, "web")]


async def test_whatever_happens_to_a_mirror_its_pod_stays_and_shows_again(
    autojump_clock: MockClock,
) -> None:
    server = ApiServer()
    async with running(server) as agent:
        await agent.take_static(static_pod("web", "h1"))
        agent.report("web", RUNNING)
        await trio.sleep(SOON)
        for grace_seconds, watched in ((None, True), (0, True), (None, False), (0, False)):
            first = server.get(PODS, "web").metadata.uid
            if not watched:
                server.drop_watches()
            server.delete(PODS, "web", grace_seconds=grace_seconds)
            await trio.sleep(SOON)
            mirror = server.get(PODS, "web")
            assert (mirror.metadata.uid != first, mirror.status.phase) == (True, "Running")
        assert agent.updates == [(PodOperation.ADD, "web")]


async def test_a_mirror_goes_after_its_pod(autojump_clock: MockClock) -> None:
    server = ApiServer()
    async with running(server) as agent:
        await agent.take_static(static_pod("web", "h1"), static_pod("dns", "h2"))
        await trio.sleep(SOON)
        agent.finish("web")
        await agent.take_static(static_pod("dns", "h2"))
        await trio.sleep(SOON)
        assert set(phases(server)) == {"dns"}


async def test_a_refusal_for_lack_of_rights_is_over_soon(autojump_clock: MockClock) -> None:
    server = ApiServer()
    async with running(server, "a") as agent:
        server.faults.add(RequestFault(verb="patch", code=403, reason="Forbidden", times=4))
        agent.report("a", RUNNING)
        await trio.sleep(SOON)
        assert phases(server) == {"a": "Running"}
