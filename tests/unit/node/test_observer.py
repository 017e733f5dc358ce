"""A look at the node."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import define, field
from trio.testing import MockClock

from tests.file_work import in_place
from tests.trio_clock import TrioClock
from tests.unit.node.nodes import NAME, a_profile
from trio_kubelet.eviction import Pressures
from trio_kubelet.hollow import HollowOptions, open_hollow_runtime
from trio_kubelet.hollow.faults import CallFault, ScriptedFaults
from trio_kubelet.node.observer import NodeObserver, Observation, Readiness
from trio_kubelet.node.profile import HostNetwork
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth, runtime_state

BUSYBOX = "docker.io/library/busybox:1"


@define
class FakeNetwork(HostNetwork):
    """A machine with one address, which its name has."""

    local: list[str] = field(factory=lambda: ["10.0.0.7"])
    names: list[str] = field(factory=lambda: ["10.0.0.7"])

    def resolve(self, name: str) -> Sequence[str]:
        assert name == NAME
        return self.names

    def is_local(self, address: str) -> bool:
        return address in self.local

    def default_route(self, version: int) -> str | None:
        return None


@define
class Scene:
    """A node whose runtime is hollow."""

    client: RuntimeClient
    runtime_health: RuntimeHealth
    network: FakeNetwork
    observer: NodeObserver
    faults: ScriptedFaults

    async def runtime_answers(self) -> None:
        self.runtime_health.update(runtime_state(await self.client.status()))


@asynccontextmanager
async def scene(*images: str) -> AsyncIterator[Scene]:
    faults = ScriptedFaults()
    options = HollowOptions(faults=faults, images=images)
    async with open_hollow_runtime(TrioClock(), options) as runtime:
        client = RuntimeClient(InProcess(runtime))
        runtime_health, network = RuntimeHealth(), FakeNetwork()
        observer = NodeObserver(
            profile=a_profile(),
            client=client,
            runtime_health=runtime_health,
            readiness=Readiness(runtime_health),
            pressures=lambda: Pressures(disk=True),
            network=network,
        )
        yield Scene(client, runtime_health, network, observer, faults)


def names(seen: Observation) -> set[str]:
    return {name for image in seen.images for name in image.names}


async def test_a_runtime_that_has_not_answered_is_not_asked(autojump_clock: MockClock) -> None:
    async with scene() as at:
        seen = await at.observer.observe()
    assert seen.addresses == ("10.0.0.7",)
    assert seen.runtime == ""
    assert seen.images == ()
    assert seen.pressures == Pressures(disk=True)
    assert seen.errors[0] == "container runtime status check may not have completed yet"


async def test_the_runtime_tells_version_handlers_and_images(autojump_clock: MockClock) -> None:
    async with scene(BUSYBOX) as at:
        await at.runtime_answers()
        seen = await at.observer.observe()
    assert seen.runtime == "hollow://2.1.0"
    assert [handler.name for handler in seen.runtime_features.handlers] == ["", "runc"]
    assert BUSYBOX in names(seen)
    assert seen.errors == ()


async def test_images_are_listed_every_half_minute_at_most(autojump_clock: MockClock) -> None:
    async with scene(BUSYBOX) as at:
        await at.runtime_answers()
        await at.observer.observe()
        await at.client.remove_image(cri.ImageSpec(image=BUSYBOX))
        await trio.sleep(29)
        assert BUSYBOX in names(await at.observer.observe())
        await trio.sleep(2)
        assert BUSYBOX not in names(await at.observer.observe())


async def test_a_runtime_that_fails_leaves_what_was_known(autojump_clock: MockClock) -> None:
    async with scene(BUSYBOX) as at:
        await at.runtime_answers()
        before = await at.observer.observe()
        at.faults.add("ListImages", CallFault(error=RpcError(Code.UNAVAILABLE, "busy")))
        await trio.sleep(31)
        assert await at.observer.observe() == before


async def test_a_slow_runtime_holds_a_look_up_for_two_seconds(autojump_clock: MockClock) -> None:
    async with scene() as at:
        await at.runtime_answers()
        at.faults.add("Version", CallFault(delay_seconds=60))
        began = trio.current_time()
        seen = await at.observer.observe()
        assert trio.current_time() - began <= 2.1
        assert seen.addresses == ("10.0.0.7",)


async def test_a_runtime_that_comes_back_may_be_another_version(
    autojump_clock: MockClock,
) -> None:
    async with scene() as at:
        await at.runtime_answers()
        await at.observer.observe()
        at.faults.add("Version", CallFault(error=RpcError(Code.UNAVAILABLE, "asked again")))
        at.runtime_health.mark_down("container runtime is down: gone")
        await at.runtime_answers()
        await at.observer.observe()
        assert not at.faults._faults["Version"]


async def test_addresses_that_cannot_be_chosen_are_unknown_and_those_known_stay(
    autojump_clock: MockClock,
) -> None:
    async with scene() as at:
        at.network.names = []
        assert (await at.observer.observe()).addresses is None
        at.network.names = ["10.0.0.7"]
        assert (await at.observer.observe()).addresses == ("10.0.0.7",)
        at.network.names = []
        assert (await at.observer.observe()).addresses == ("10.0.0.7",)


async def test_a_name_server_that_hangs_holds_a_look_up_for_two_seconds(
    autojump_clock: MockClock,
) -> None:
    async with scene() as at:
        with in_place(lambda: 60.0):
            assert (await at.observer.observe()).addresses is None
        assert trio.current_time() == 2.0
        assert (await at.observer.observe()).addresses == ("10.0.0.7",)
