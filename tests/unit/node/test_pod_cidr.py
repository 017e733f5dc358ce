"""The runtime is told from which range pods get their addresses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.hollow import (
    CallFault,
    Faults,
    HollowOptions,
    HollowRuntime,
    ScriptedFaults,
    open_hollow_runtime,
)
from trio_kubelet.hollow.faults import no_faults
from trio_kubelet.k8s import Node, NodeSpec
from trio_kubelet.node.pod_cidr import PodCidr, pod_cidr_of
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, RuntimeState

UP, DOWN = RuntimeState(answered=True, up=True), RuntimeState(answered=False)


@pytest.mark.parametrize(
    ("spec", "cidr"),
    [
        (NodeSpec(), ""),
        (NodeSpec(pod_cidr="10.1.0.0/24"), "10.1.0.0/24"),
        (NodeSpec(pod_cidr="10.1.0.0/24", pod_cidrs=("10.1.0.0/24",)), "10.1.0.0/24"),
        (NodeSpec(pod_cidrs=("10.1.0.0/24", "fd00::/64")), "10.1.0.0/24,fd00::/64"),
    ],
)
def test_the_range_is_that_of_the_node_object(spec: NodeSpec, cidr: str) -> None:
    assert pod_cidr_of(Node(spec=spec)) == cidr
    assert pod_cidr_of(None) == ""


@define
class Scene:
    """A runtime that may be away, and the range as the node has it."""

    runtime: HollowRuntime
    health: RuntimeHealth = field(factory=RuntimeHealth)
    cidr: str = ""

    async def told(self) -> str:
        """The range that the runtime knows once nothing is under way, which is then forgotten."""
        await trio.testing.wait_all_tasks_blocked()
        told, self.runtime.pod_cidr = self.runtime.pod_cidr, ""
        return told


@asynccontextmanager
async def running(faults: Faults = no_faults) -> AsyncIterator[tuple[Scene, PodCidr]]:
    options = HollowOptions(faults=faults)
    async with open_hollow_runtime(TrioClock(), options) as runtime, trio.open_nursery() as nursery:
        scene = Scene(runtime)
        services = InProcess(runtime)
        client = RuntimeClient(services, services, services)
        owner = PodCidr(client, scene.health, lambda: scene.cidr)
        nursery.start_soon(owner.run)
        yield scene, owner
        nursery.cancel_scope.cancel()


async def test_each_range_is_told_once(autojump_clock: MockClock) -> None:
    async with running() as (scene, owner):
        scene.health.update(UP)
        assert await scene.told() == ""
        scene.cidr = "10.1.0.0/24"
        owner.look()
        assert await scene.told() == "10.1.0.0/24"
        owner.look()
        assert await scene.told() == ""
        scene.cidr = "10.2.0.0/24"
        owner.look()
        assert await scene.told() == "10.2.0.0/24"


async def test_a_runtime_that_comes_or_begins_anew_is_told(autojump_clock: MockClock) -> None:
    async with running() as (scene, _):
        scene.cidr = "10.1.0.0/24"
        assert await scene.told() == ""
        for _ in range(2):
            scene.health.update(UP)
            assert await scene.told() == "10.1.0.0/24"
            scene.health.update(DOWN)
            assert await scene.told() == ""


async def test_a_runtime_that_refuses_is_told_again(autojump_clock: MockClock) -> None:
    refusal = CallFault(error=RpcError(Code.UNAVAILABLE, "not now"))
    faults = ScriptedFaults([("UpdateRuntimeConfig", refusal)] * 2)
    async with running(faults) as (scene, _):
        scene.cidr = "10.1.0.0/24"
        scene.health.update(UP)
        assert await scene.told() == ""
        await trio.sleep(10)
        assert await scene.told() == "10.1.0.0/24"


async def test_a_runtime_that_begins_anew_while_it_is_told_is_told_again(
    autojump_clock: MockClock,
) -> None:
    slow = CallFault(delay_seconds=10)
    faults = ScriptedFaults([("UpdateRuntimeConfig", slow)] * 2)
    async with running(faults) as (scene, _):
        scene.cidr = "10.1.0.0/24"
        scene.health.update(UP)
        await trio.sleep(5)
        scene.health.update(DOWN)
        scene.health.update(UP)
        await trio.sleep(6)
        assert await scene.told() == "10.1.0.0/24"
        await trio.sleep(10)
        assert await scene.told() == "10.1.0.0/24"
