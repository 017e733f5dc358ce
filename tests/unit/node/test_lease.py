"""The lease: made, renewed, taken over, made again."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock

from tests.apiserver.faults import ReceivedRequest, RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from tests.unit.node.nodes import NAME, a_node
from trio_kubelet.k8s import LEASES, NODES, Lease, LeaseSpec, MicroTime, ObjectMeta
from trio_kubelet.node.lease import LEASE_NAMESPACE, NodeLease, new_lease, renewed_lease
from trio_kubelet.node.reporter import NodeView

NOW = MicroTime.parse("2026-03-01T12:00:00.123456Z")


@define
class Scene:
    """A node and its lease at an API server."""

    server: ApiServer = field(factory=ApiServer)
    returns: int = 0

    def returned(self) -> None:
        self.returns += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        view, api = NodeView(NAME), self.server.client()
        lease = NodeLease(
            api=api,
            view=view,
            clock=TrioClock(),
            seconds=40,
            chance=random.Random(1),
            on_return=self.returned,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(view.watch, api)
            nursery.start_soon(lease.run)
            yield
            nursery.cancel_scope.cancel()

    @property
    def lease(self) -> Lease:
        return self.server.get(LEASES, NAME, LEASE_NAMESPACE)

    @property
    def renewed_seconds_ago(self) -> float:
        renewed = self.lease.spec.renew_time
        assert renewed is not None
        return (TrioClock().now_ns() - renewed.ns) / 1e9

    async def until_there(self) -> Lease:
        await self.server.until(lambda: self.server.find(LEASES, NAME, LEASE_NAMESPACE))
        return self.lease

    def asked(self) -> list[ReceivedRequest]:
        return [each for each in self.server.requests if each.resource == "leases"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_new_lease_is_held_by_its_node_and_owned_by_it() -> None:
    lease = renewed_lease(new_lease(NAME), a_node(), seconds=40, now=NOW)
    assert lease.metadata.namespace == "kube-node-lease"
    assert lease.spec == LeaseSpec(holder_identity=NAME, lease_duration_seconds=40, renew_time=NOW)
    (owner,) = lease.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == (
        "v1",
        "Node",
        NAME,
        "node-uid",
    )
    assert owner.controller is None


def test_a_lease_is_renewed_before_its_node_is_known() -> None:
    lease = renewed_lease(new_lease(NAME), None, seconds=40, now=NOW)
    assert lease.metadata.owner_references == ()
    assert lease.spec.renew_time == NOW


async def test_a_lease_is_made_as_soon_as_there_is_a_node(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await trio.sleep(5)
        assert [each.verb for each in scene.asked()] == ["get"]
        scene.server.create(NODES, a_node())
        began = trio.current_time()
        await scene.until_there()
        assert trio.current_time() - began < 0.1


async def test_it_is_renewed_every_ten_seconds_by_one_request(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        await scene.until_there()
        await trio.sleep(600)
        assert scene.renewed_seconds_ago <= 10.4
    verbs = [each.verb for each in scene.asked()]
    assert verbs[:2] == ["get", "create"]
    assert set(verbs[2:]) == {"update"}
    assert 57 <= len(verbs) - 2 <= 60


async def test_the_lease_of_an_earlier_agent_is_taken_over(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        first = await scene.until_there()
    await trio.sleep(30)
    async with scene.running():
        await scene.server.until(lambda: scene.lease.spec.renew_time != first.spec.renew_time)
    assert scene.lease.metadata.uid == first.metadata.uid


async def test_a_deleted_lease_is_made_again(scene: Scene, autojump_clock: MockClock) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        await scene.until_there()
        scene.server.delete(LEASES, NAME, LEASE_NAMESPACE)
        await trio.sleep(11)
        assert scene.lease.spec.holder_identity == NAME


async def test_somebody_elses_change_does_not_stop_a_renewal(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        lease = await scene.until_there()
        labelled = evolve(lease.metadata, labels={"mine": "kept"})
        scene.server.update(LEASES, evolve(lease, metadata=labelled))
        await trio.sleep(11)
        assert scene.renewed_seconds_ago <= 10.4
    assert scene.lease.metadata.labels == {"mine": "kept"}


async def test_an_outage_is_waited_out(scene: Scene, autojump_clock: MockClock) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        await scene.until_there()
        scene.server.go_away()
        await trio.sleep(300)
        scene.server.come_back()
        await trio.sleep(7.1)
        assert scene.renewed_seconds_ago <= 7.1


async def test_the_end_of_an_outage_is_told_once(scene: Scene, autojump_clock: MockClock) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        await scene.until_there()
        await trio.sleep(30)
        assert scene.returns == 0
        scene.server.go_away()
        await trio.sleep(120)
        scene.server.come_back()
        await trio.sleep(60)
    assert scene.returns == 1


async def test_a_few_refusals_do_not_delay_a_renewal(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.create(NODES, a_node())
    async with scene.running():
        await scene.until_there()
        scene.server.faults.add(RequestFault(verb="update", resource="leases", code=500, times=4))
        await trio.sleep(20)
        assert scene.renewed_seconds_ago <= 10.4


async def test_a_lease_without_an_owner_gets_one(scene: Scene, autojump_clock: MockClock) -> None:
    scene.server.create(NODES, a_node())
    bare = Lease(metadata=ObjectMeta(name=NAME, namespace=LEASE_NAMESPACE))
    scene.server.create(LEASES, bare)
    async with scene.running():
        await scene.server.until(lambda: scene.lease.metadata.owner_references)
    assert scene.lease.spec.holder_identity == NAME


async def test_a_round_that_stumbles_is_made_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([RuntimeError("a bug"), RuntimeError("a bug")])

    def failing_twice(lease: Lease, node: Any, **facts: Any) -> Lease:
        for error in errors:
            raise error
        return renewed_lease(lease, node, **facts)

    monkeypatch.setattr("trio_kubelet.node.lease.renewed_lease", failing_twice)
    scene = Scene()
    scene.server.create(NODES, a_node())
    async with scene.running():
        await scene.until_there()
