"""Volumes that fail are tried again by back-off, and each try has its event."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from lab.csi_driver import STAGES, LabDriver
from tests.node_facts import node_facts
from tests.trio_clock import TrioClock
from tests.turns import making_test_data
from tests.unit.volumes.csi_scene import EPHEMERAL, Scene, calls, claiming, describe
from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import Pod
from trio_kubelet.references import NoReferences
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, EventType, Journal
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.volumes import PodStorage

NO = {"fail": "INTERNAL: no"}
SETUP = 'MountVolume.SetUp failed for volume "v" : rpc error: code = Internal desc = no'
STAGE = 'MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = no'


@define
class Node:
    """A node whose pods ask for their volumes when they are due, and once in between."""

    scene: Scene
    storage: PodStorage
    events: list[RecordedEvent] = field(factory=list)
    tried: list[float] = field(factory=list)

    def note(self, pod: Pod, error: PreparationError) -> None:
        """Take note of what the pod's task makes an event of."""
        self.tried.append(trio.current_time())
        self.events.append(
            RecordedEvent(
                pod=pod, type=EventType.WARNING, reason=error.reason, message=error.message
            )
        )

    async def ask_for(self, seconds: float, pod: Pod) -> None:
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            wait_seconds = 1.0
            try:
                await self.storage.prepare(pod)
            except PreparationError as error:
                wait_seconds = error.retry_seconds or 1.0
                if not error.is_told:
                    self.note(pod, error)
                    wait_seconds /= 2
            await trio.sleep(wait_seconds)


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        with making_test_data():
            scene = Scene(tmp_path_factory.mktemp("v"), nursery)
        yield scene
        nursery.cancel_scope.cancel()


async def a_node(scene: Scene) -> Node:
    recorder = EventRecorder(Journal(TrioClock()), "node")
    volumes, facts = scene.agent(), node_facts(scene.root)
    await scene.nursery.start(scene.staged.run)
    await scene.nursery.start(scene.stages.run)
    storage = PodStorage(volumes, NoReferences(), recorder, facts, FairLimiter(1, 1))
    node = Node(scene, storage)
    recorder.on_event.add(node.events.append)
    return node


def tries(driver: LabDriver, method: str) -> int:
    return len(calls(driver, method, "begun"))


async def test_a_publish_that_fails_is_tried_by_the_times_of_the_go_kubelet(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe(EPHEMERAL)
    with scene.driver_in_process() as driver:
        node = await a_node(scene)
        driver.set_faults(NodePublishVolume=NO)
        await node.ask_for(380, scene.pod)
        waits = [later - earlier for earlier, later in pairwise(node.tried)]
        assert [round(wait, 3) for wait in waits] == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122]
        assert tries(driver, "NodePublishVolume") == len(node.tried)
        driver.set_faults()
        await node.ask_for(122, scene.pod)
        assert len(calls(driver, "NodePublishVolume")) == 1


async def test_each_try_has_one_event(autojump_clock: MockClock, scene: Scene) -> None:
    scene.describe(EPHEMERAL)
    with scene.driver_in_process() as driver:
        node = await a_node(scene)
        driver.set_faults(NodePublishVolume=NO)
        await node.ask_for(40, scene.pod)
        told = [(event.reason, event.message) for event in node.events]
        assert told == [("FailedMount", SETUP)] * tries(driver, "NodePublishVolume")


async def test_every_pod_of_a_volume_that_is_not_staged_is_told_of_each_try(
    autojump_clock: MockClock, scene: Scene
) -> None:
    describe(scene)
    pods = claiming("a"), claiming("b")
    with scene.driver_in_process(capabilities=(STAGES,)) as driver:
        node = await a_node(scene)
        driver.set_faults(NodeStageVolume=NO)
        async with trio.open_nursery() as nursery:
            for pod in pods:
                nursery.start_soon(node.ask_for, 30.0, pod)
        for pod in pods:
            told = [event for event in node.events if event.pod == pod]
            assert [event.message for event in told] == [STAGE] * len(told)
            assert len(told) == tries(driver, "NodeStageVolume")


async def test_a_driver_that_registers_again_is_asked_at_once(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe(EPHEMERAL)
    with scene.driver_in_process() as driver:
        node = await a_node(scene)
        woken: list[str] = []
        scene.staged.on_ready.add(woken.append)
        driver.set_faults(NodePublishVolume=NO)
        await node.ask_for(200, scene.pod)
        driver.set_faults()
    assert woken == [scene.pod.metadata.uid]
    with scene.driver_in_process() as driver:
        await node.storage.prepare(scene.pod)
        assert len(calls(driver, "NodePublishVolume")) == 1


async def test_a_pod_that_comes_back_has_no_back_off(
    autojump_clock: MockClock, scene: Scene
) -> None:
    scene.describe(EPHEMERAL)
    with scene.driver_in_process() as driver:
        node = await a_node(scene)
        driver.set_faults(NodePublishVolume=NO)
        await node.ask_for(200, scene.pod)
        driver.set_faults()
        await node.storage.unmount(scene.pod)
        await node.storage.prepare(scene.pod)
        assert len(calls(driver, "NodePublishVolume")) == 1
