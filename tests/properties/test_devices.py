"""No device is ever with two pods, and none is lost, whatever comes after whatever.

Pods are admitted and end, devices turn unhealthy and healthy, the plugin is killed and comes back,
the agent is killed and starts anew on what it has written down.
"""

import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from attrs import define, field
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from lab.device_plugin import RESOURCE, LabDevicePlugin
from tests.unit.devices.nodes import (
    DeviceNode,
    device_container,
    device_node,
    device_pod,
    devices,
)
from trio_kubelet.devices.choice import needed_devices
from trio_kubelet.devices.manager import AllocationError, DevicesAwaitedError
from trio_kubelet.k8s import Pod

COUNT = 4
WAIT_SECONDS = 30
"""A tenth of the time for which a plugin is expected."""

Step = tuple[str, int]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 26)),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("sync"), st.integers(0, 5)),
        st.tuples(st.just("flip"), st.integers(0, COUNT - 1)),
        st.tuples(st.just("fail"), st.integers(0, 1)),
        st.tuples(st.sampled_from(("restart", "kill", "come")), st.just(0)),
        st.tuples(st.just("time"), st.sampled_from((WAIT_SECONDS, 10 * WAIT_SECONDS + 1))),
    ),
    max_size=25,
)


def pod_of(uid: str, shape: int) -> Pod:
    """A pod with up to two devices in each of an init container, a sidecar and a container."""
    first, rest = divmod(shape, 9)
    side, main = divmod(rest, 3)
    return device_pod(
        uid,
        device_container(count=main),
        init=[device_container("first", first), device_container("side", side, sidecar=True)],
    )


@define
class Model:
    """A node and what is known of it beside it: its pods, and how its devices are."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    node: DeviceNode
    plugin: LabDevicePlugin | None = None
    pods: dict[str, Pod] = field(factory=dict)
    health: dict[str, str] = field(factory=lambda: dict.fromkeys(devices(COUNT), "Healthy"))
    needing: set[str] = field(factory=set)
    admitted: int = 0

    async def come(self, _: int = 0) -> None:
        """The plugin comes, or registers anew."""
        self.plugin = self.node.plugin()
        self.plugin.set_devices(self.health)
        await self.node.register(self.plugin)

    async def kill(self, _: int) -> None:
        if self.plugin is not None:
            plugin, self.plugin = self.plugin, None
            await self.node.kill(plugin)

    async def flip(self, number: int) -> None:
        name = f"dev-{number}"
        self.health[name] = "Unhealthy" if self.health[name] == "Healthy" else "Healthy"
        if self.plugin is not None:
            self.plugin.set_devices(self.health)
            await trio.sleep(1)

    async def fail(self, fails: int) -> None:
        if self.plugin is not None:
            self.plugin.set_faults(**({"Allocate": {"fail": "no"}} if fails else {}))

    async def time(self, seconds: int) -> None:
        await trio.sleep(seconds)

    async def admit(self, shape: int) -> None:
        self.admitted += 1
        pod = pod_of(f"u{self.admitted}", shape)
        if not self.node.manager.refusal(pod, list(self.pods.values())):
            self.pods[pod.metadata.uid] = pod
            self.take_up(pod)
            await self.sync(len(self.pods) - 1)

    def take_up(self, pod: Pod) -> None:
        """A pod is admitted, or found by an agent that starts anew."""
        self.node.manager.remember(pod)
        if self.node.manager.is_device(RESOURCE):
            self.needing.add(pod.metadata.uid)

    async def sync(self, number: int) -> None:
        """Sync a pod; a rejected one ends."""
        if number >= len(self.pods):
            return
        pod = list(self.pods.values())[number]
        try:
            await self.node.manager.prepare(pod, ())
        except AllocationError:
            await self.end(number)
        except DevicesAwaitedError:
            return
        else:
            self.has_all(pod)

    async def end(self, number: int) -> None:
        if number < len(self.pods):
            uid = list(self.pods)[number]
            del self.pods[uid]
            await self.node.manager.release(uid)

    def has_all(self, pod: Pod) -> None:
        """A pod that may start has what each container asks for.

        One has none that was admitted when no plugin offered the resource.
        """
        for container in pod.spec.admitted_containers:
            limits = container.resources.limits if container.resources is not None else {}
            wanted = limits[RESOURCE].value if RESOURCE in limits else 0
            found = len(self.node.has(pod, container.name))
            assert found == wanted or (found == 0 and pod.metadata.uid not in self.needing)

    def check(self) -> None:
        """Each device is with one pod at most, and what is held is held by pods that are there."""
        records = self.node.manager.records
        holders = Counter(
            device for uid in records.uids() for device in records.held_by(uid, RESOURCE)
        )
        assert all(count == 1 for count in holders.values()), holders
        assert records.uids() <= self.pods.keys()
        assert set(records.held(RESOURCE)) == holders.keys()
        for uid, pod in self.pods.items():
            needed = needed_devices(pod, RESOURCE.__eq__).get(RESOURCE, 0)
            assert len(records.held_by(uid, RESOURCE)) <= needed


async def play(story: list[Step], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the steps, and look after each."""
    async with AsyncExitStack() as stack:
        model: Model | None = None

        async def start() -> DeviceNode:
            await stack.aclose()
            opened = device_node(folder, monkeypatch, wait_seconds=WAIT_SECONDS)
            return await stack.enter_async_context(opened)

        model = Model(folder, monkeypatch, await start())
        await model.come()
        for name, number in story:
            if name == "restart":
                before = {uid: model.node.has(pod) for uid, pod in model.pods.items()}
                model.plugin, model.node = None, await start()
                assert before == {uid: model.node.has(pod) for uid, pod in model.pods.items()}
                for pod in model.pods.values():
                    model.take_up(pod)
            else:
                step: Callable[[int], Awaitable[None]] = getattr(model, name)
                await step(number)
            model.check()
        while model.pods:
            await model.end(0)
        assert not model.node.manager.records.held(RESOURCE), "a device is lost"


@given(steps)
@example([("kill", 0), ("admit", 1), ("time", 10 * WAIT_SECONDS + 1), ("sync", 0)])
def test_no_device_is_given_twice_or_lost(story: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        trio.run(play, story, Path(folder), monkeypatch, clock=MockClock(autojump_threshold=0))
