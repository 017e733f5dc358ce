"""No device is ever with two pods, and none is lost, whatever comes after whatever.

Pods are admitted and end, devices turn unhealthy and healthy, the plugin is killed and comes back,
its lists fail, the agent is killed and starts anew on what it has written down, or on a file that
was damaged meanwhile: then the runtime tells what containers have, but for those of another
kubelet.
"""

import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, evolve, field
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
from trio_kubelet.devices import RunningContainer
from trio_kubelet.devices.choice import needed_devices
from trio_kubelet.devices.manager import AllocationError, DevicesAwaitedError
from trio_kubelet.devices.records import CHECKPOINT
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
        st.tuples(st.sampled_from(("fail", "fail_lists")), st.integers(0, 1)),
        st.tuples(st.sampled_from(("restart", "kill", "come")), st.just(0)),
        st.tuples(st.just("damage"), st.integers(0, 2)),
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
class Running:
    """The containers of a pod that run, and the devices of them."""

    has: frozenset[str]
    containers: list[RunningContainer]


@define
class Model:
    """A node and what is known of it beside it: its pods, and how its devices are."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    node: DeviceNode
    plugin: LabDevicePlugin | None = None
    pods: dict[str, Pod] = field(factory=dict)
    health: dict[str, str] = field(factory=lambda: dict.fromkeys(devices(COUNT), "Healthy"))
    faults: dict[str, dict[str, str]] = field(factory=dict)
    needing: set[str] = field(factory=set)
    admitted: int = 0
    running: dict[str, Running] = field(factory=dict)

    async def come(self, _: int = 0) -> None:
        """The plugin comes, or registers anew."""
        self.plugin = self.node.plugin()
        self.plugin.set_devices(self.health)
        self.plugin.set_faults(**self.faults)
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
        await self.set_fault("Allocate", fails)

    async def fail_lists(self, fails: int) -> None:
        await self.set_fault("ListAndWatch", fails)

    async def set_fault(self, method: str, fails: int) -> None:
        self.faults[method] = {"fail": "no"} if fails else {}
        if self.plugin is not None:
            self.plugin.set_faults(**self.faults)
            await trio.sleep(1)

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
        known = self.running.get(pod.metadata.uid)
        names = [each.name for each in known.containers] if known is not None else []
        try:
            await self.node.manager.prepare(pod, names)
        except AllocationError:
            if known is None:
                await self.end(number)
        except DevicesAwaitedError:
            return
        else:
            if known is None:
                self.has_all(pod)
                await self.start(pod)

    async def start(self, pod: Pod) -> None:
        """Start the containers of a pod that has its devices."""
        uid, containers = pod.metadata.uid, list[RunningContainer]()
        for container in pod.spec.admitted_containers:
            allocation = await self.node.manager.allocation(pod, container)
            containers.append(
                RunningContainer(
                    pod_uid=uid,
                    name=container.name,
                    created_at_ns=1,
                    annotations=allocation.annotations,
                )
            )
        has = self.node.manager.records.held_by(uid, RESOURCE)
        self.running[uid] = Running(has, containers)

    def damage(self, which: int) -> None:
        """Damage the file: no JSON any more, or without its entries, or with others."""
        path = self.folder / CHECKPOINT
        if path.exists():
            text = path.read_text()
            path.write_text(
                ("{", text.replace("PodUID", "Pod"), text.replace("dev-", "other-"))[which]
            )

    def forget_annotations(self) -> None:
        """Take all containers for those of a kubelet that does not tell their devices."""
        for each in self.running.values():
            each.containers = [evolve(one, annotations={}) for one in each.containers]

    async def end(self, number: int) -> None:
        if number < len(self.pods):
            uid = list(self.pods)[number]
            del self.pods[uid]
            self.running.pop(uid, None)
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

    async def serves(self) -> None:
        """A plugin that is there and lists its devices serves."""
        await self.fail_lists(0)
        healthy = list(self.health.values()).count("Healthy") if self.plugin is not None else 0
        assert await self.node.comes_to_have(healthy)

    def check(self) -> None:
        """Each device is with one pod at most, and what is held is held by pods that are there."""
        records = self.node.manager.records
        users = Counter(device for each in self.running.values() for device in each.has)
        assert all(count == 1 for count in users.values()), users
        holders = Counter(
            device for uid in records.uids() for device in records.held_by(uid, RESOURCE)
        )
        assert all(count == 1 for count in holders.values()), holders
        assert records.uids() <= self.pods.keys()
        assert set(records.held(RESOURCE)) == holders.keys()
        for uid, pod in self.pods.items():
            needed = needed_devices(pod, RESOURCE.__eq__).get(RESOURCE, 0)
            assert len(records.held_by(uid, RESOURCE)) <= needed


async def play(
    story: list[Step], folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    """Do the steps, and look after each. `is_told`: the runtime tells of containers' devices."""
    async with AsyncExitStack() as stack:
        model: Model | None = None

        async def start() -> DeviceNode:
            await stack.aclose()
            opened = device_node(folder, monkeypatch, wait_seconds=WAIT_SECONDS)
            return await stack.enter_async_context(opened)

        model = Model(folder, monkeypatch, await start())
        await model.come()
        for name, number in story:
            if name in ("restart", "damage"):
                before = {uid: model.node.has(pod) for uid, pod in model.pods.items()}
                await stack.aclose()
                if name == "damage":
                    model.damage(number)
                model.plugin, model.node = None, await start()
                model.node.manager.recover(
                    each for known in model.running.values() for each in known.containers
                )
                if name == "restart" and is_told:
                    after = {uid: model.node.has(pod) for uid, pod in model.pods.items()}
                    assert before == after
                for pod in model.pods.values():
                    model.take_up(pod)
            else:
                step: Callable[[int], Awaitable[None]] = getattr(model, name)
                await step(number)
            if not is_told:
                model.forget_annotations()
            model.check()
        await model.serves()
        while model.pods:
            await model.end(0)
        assert not model.node.manager.records.held(RESOURCE), "a device is lost"


@given(story=steps, is_told=st.booleans())
@example(
    story=[("kill", 0), ("admit", 1), ("time", 10 * WAIT_SECONDS + 1), ("sync", 0)], is_told=True
)
@example(story=[("kill", 0), ("restart", 0), ("fail_lists", 1), ("come", 0)], is_told=True)
@example(story=[("admit", 2), ("damage", 0), ("come", 0), ("admit", 2)], is_told=False)
def test_no_device_is_given_twice_or_lost(*, story: list[Step], is_told: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        run = partial(play, story, Path(folder), monkeypatch, is_told=is_told)
        trio.run(run, clock=MockClock(autojump_threshold=0))
