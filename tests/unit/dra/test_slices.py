"""ResourceSlices of drivers that have gone: which are removed, and when, on a mock clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import pytest
import trio
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.apiserver.faults import RequestFault
from tests.apiserver.server import ApiServer
from trio_kubelet.dra import DRADrivers, ResourceSliceRemoval
from trio_kubelet.dra.driver import V1, DRADriver
from trio_kubelet.dra.slices import GRACE_SECONDS, MAX_NAMED
from trio_kubelet.k8s import RESOURCE_SLICES, ObjectMeta, ResourceSlice, ResourceSliceSpec

NODE = "node-1"
SOON = 5.0


@define
class Scene:
    """The drivers of a node, and the API server that knows of their devices."""

    server: ApiServer = field(factory=ApiServer)
    drivers: DRADrivers = field(factory=DRADrivers)
    there: dict[str, ExitStack] = field(factory=dict)

    def publish(self, driver: str, node: str = NODE) -> None:
        """Have a slice, as a driver has that finds none."""
        name = f"{node}-{driver}"
        if self.server.find(RESOURCE_SLICES, name) is None:
            spec = ResourceSliceSpec(driver=driver, node_name=node)
            made = ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)
            self.server.create(RESOURCE_SLICES, made)

    def come(self, *names: str) -> None:
        for name in names:
            driver = DRADriver(name=name, endpoint=f"/{name}.sock", version=V1)
            stack = self.there.setdefault(name, ExitStack())
            stack.enter_context(self.drivers.registered(driver))

    def go(self, *names: str) -> None:
        for name in names:
            self.there.pop(name).close()

    @property
    def slices(self) -> Sequence[str]:
        """The drivers of this node that the cluster knows devices of."""
        found = (each.spec for each in self.server.all(RESOURCE_SLICES))
        return [each.driver for each in found if each.node_name == NODE]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """An agent runs; all drivers go with it."""
        removal = ResourceSliceRemoval(self.drivers, NODE, self.server.client())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(removal.run)
            yield
            nursery.cancel_scope.cancel()
        self.go(*self.there)


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    for name in ("a", "b"):
        scene.publish(name)
    return scene


async def test_slices_go_when_their_driver_has_been_away_for_its_time(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.publish("a", "node-2")
    async with scene.running():
        scene.come("a", "b")
        await trio.sleep(1000)
        assert scene.slices == ["a", "b"]
        scene.go("a")
        await trio.sleep(GRACE_SECONDS - 1)
        assert scene.slices == ["a", "b"]
        await trio.sleep(SOON)
        assert scene.slices == ["b"]
    assert len(scene.server.all(RESOURCE_SLICES)) == 2, "those of other nodes stay"


async def test_a_driver_that_comes_back_in_time_keeps_its_slices(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        scene.come("a", "b")
        await trio.sleep(100)
        for _ in range(3):
            scene.go("a")
            await trio.sleep(GRACE_SECONDS - 1)
            scene.come("a")
        await trio.sleep(1000)
        assert scene.slices == ["a", "b"]


async def test_one_of_two_sockets_of_a_driver_may_go(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        scene.come("a", "b")
        old = DRADriver(name="a", endpoint="/old.sock", version=V1)
        with scene.drivers.registered(old):
            await trio.sleep(100)
        await trio.sleep(1000)
        assert scene.slices == ["a", "b"]


async def test_drivers_have_the_same_time_to_come_after_a_start(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await trio.sleep(GRACE_SECONDS - 2)
        scene.come("a")
        assert scene.slices == ["a", "b"]
        await trio.sleep(SOON)
        assert scene.slices == ["a"]


async def test_a_driver_that_goes_at_the_start_has_its_time_from_then_on(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        scene.come("a", "b")
        await trio.sleep(GRACE_SECONDS - 2)
        scene.go("a")
        await trio.sleep(GRACE_SECONDS - 2)
        assert scene.slices == ["a", "b"]
        await trio.sleep(SOON)
        assert scene.slices == ["b"]


async def test_what_cannot_be_removed_is_removed_later(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        scene.come("a", "b")
        await trio.sleep(100)
        scene.server.faults.add(
            RequestFault(verb="delete", code=500, reason="InternalError", message="no", times=3)
        )
        scene.go("a")
        await trio.sleep(100)
        assert scene.slices == ["b"]
        scene.server.go_away()
        scene.go("b")
        await trio.sleep(3600)
        scene.come("b")  # while nobody could be told that it had gone
        scene.server.come_back()
        await trio.sleep(3600)
        assert scene.slices == ["b"]


async def test_a_server_that_does_not_know_slices_is_not_asked_again(
    scene: Scene, autojump_clock: MockClock
) -> None:
    refused = RequestFault(verb="delete", code=404, reason="NotFound", message="no such thing")
    scene.server.faults.add(refused)
    async with scene.running():
        await trio.sleep(3600)
        asked = [each for each in scene.server.requests if each.verb == "delete"]
        assert len(asked) == 1


async def test_more_drivers_than_are_counted_go_with_all_that_are_not_there(
    scene: Scene, autojump_clock: MockClock
) -> None:
    names = [f"driver-{number}" for number in range(MAX_NAMED + 8)]
    for name in names:
        scene.publish(name)
    async with scene.running():
        scene.come("a", *names)
        await trio.sleep(100)
        assert scene.slices == ["a", *sorted(names)]
        scene.go(*names)
        await trio.sleep(GRACE_SECONDS + SOON)
        assert scene.slices == ["a"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a goes", "b goes", "server goes", "a comes", "b comes", "server comes"]),
        st.sampled_from([0.0, 1.0, 14.0, 29.0, 31.0, 400.0]),
    ),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_slices_are_those_of_the_drivers_that_are_there_or_were_lately(
    steps: Sequence[tuple[str, float]],
) -> None:
    async def follow() -> None:
        scene = Scene()
        absent_since = {"a": 0.0, "b": 0.0}
        for name in absent_since:
            scene.publish(name)

        def check() -> None:
            now = trio.current_time()
            for name, since in absent_since.items():
                is_recent = now - since < GRACE_SECONDS - 0.5
                assert name in scene.slices or not (is_recent or name in scene.there)

        async with scene.running():
            for step, seconds in steps:
                who, _, what = step.partition(" ")
                if who == "server":
                    scene.server.go_away() if what == "goes" else scene.server.come_back()
                elif what == "goes" and who in scene.there:
                    scene.go(who)
                    absent_since[who] = trio.current_time()
                elif what == "comes" and who not in scene.there:
                    scene.publish(who)
                    scene.come(who)
                check()
                await trio.sleep(seconds)
                check()
            scene.server.come_back()
            await trio.sleep(1000)
            assert scene.slices == sorted(scene.there)

    trio.run(follow, clock=MockClock(autojump_threshold=0))
