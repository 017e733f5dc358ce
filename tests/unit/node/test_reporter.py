"""The Node object is kept true."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.apiserver.faults import ReceivedRequest, RequestFault
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from tests.unit.node.nodes import NAME, a_machine, a_node, a_profile, condition, seen
from trio_kubelet.config import Settings
from trio_kubelet.k8s import NODES, ContainerImage, Node, NodeSpec, ObjectMeta, Quantity
from trio_kubelet.node.conditions import is_ready
from trio_kubelet.node.observer import Observation
from trio_kubelet.node.profile import NodeProfile
from trio_kubelet.node.reporter import NodeReporter, NodeView
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent

UNREADY = seen(errors=("container runtime status check may not have completed yet",))


@define
class Scene:
    """A node at an API server. `observed` is what the next look shows."""

    server: ApiServer = field(factory=ApiServer)
    observed: Observation = field(factory=seen)
    events: list[RecordedEvent] = field(factory=list)
    view: NodeView = field(factory=lambda: NodeView(NAME))
    wake: Callable[[], None] = lambda: None
    returned: Callable[[], None] = lambda: None
    use: Callable[[Settings], None] = lambda _: None

    async def observe(self) -> Observation:
        await trio.lowlevel.checkpoint()
        return self.observed

    @asynccontextmanager
    async def running(self, profile: NodeProfile | None = None) -> AsyncIterator[None]:
        """A node agent is at work; what others did before is there already."""
        clock = TrioClock()
        recorder = EventRecorder(Journal(clock), NAME)
        recorder.on_event.add(self.events.append)
        api = self.server.client()
        reporter = NodeReporter(
            profile=profile or a_profile(),
            resources=lambda: (profile or a_profile()).resources,
            view=self.view,
            api=api,
            heartbeat=api,
            observe=self.observe,
            recorder=recorder,
            clock=clock,
            chance=random.Random(1),
        )
        self.wake, self.returned, self.use = reporter.wake, reporter.returned, reporter.use
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.view.watch, api)
            nursery.start_soon(reporter.run)
            yield
            nursery.cancel_scope.cancel()

    @property
    def node(self) -> Node:
        """As the cluster has it."""
        return self.server.get(NODES, NAME)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def asked(self, *verbs: str) -> list[ReceivedRequest]:
        return [
            each for each in self.server.requests if each.resource == "nodes" and each.verb in verbs
        ]

    async def until(self, condition: Callable[[Node], Any]) -> Node:
        def holds() -> bool:
            node = self.server.find(NODES, NAME)
            return node is not None and bool(condition(node))

        await self.server.until(holds, seconds=900)
        return self.node


@pytest.fixture
def scene() -> Scene:
    return Scene()


def ready(node: Node) -> bool:
    return is_ready(node.status.conditions)


def boot_id(node: Node) -> str:
    return node.status.node_info.boot_id if node.status.node_info is not None else ""


SUFFICIENT = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]


async def test_a_node_is_registered_and_ready_as_soon_as_its_runtime_is(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.observed = UNREADY
    async with scene.running():
        node = await scene.until(lambda node: node.status.conditions)
        assert condition(node.status, "Ready").message == UNREADY.errors[0]
        began = trio.current_time()
        scene.observed = seen()
        scene.wake()
        await scene.until(ready)
        assert trio.current_time() - began < 0.1
        await trio.sleep(0.1)
    assert scene.reasons == [*SUFFICIENT, "NodeReady"]
    assert scene.events[-1].message == f"Node {NAME} status is now: NodeReady"


async def test_a_node_that_is_not_ready_looks_again_soon(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.observed = UNREADY
    async with scene.running():
        await scene.until(lambda node: node.status.conditions)
        scene.observed = seen()
        began = trio.current_time()
        await scene.until(ready)
        assert trio.current_time() - began <= 1.1


async def test_a_registered_node_is_not_written_again_at_once(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        await trio.sleep(60)
    assert len(scene.asked("create")) == 1
    assert scene.asked("patch") == []


async def test_a_quiet_node_reports_every_five_minutes(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        await trio.sleep(3600)
    assert 11 <= len(scene.asked("patch")) <= 13
    assert scene.asked("get") == []


async def test_a_change_is_reported_within_ten_seconds(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        began = trio.current_time()
        scene.observed = seen(images=(ContainerImage(names=("a:1",), size_bytes=1),))
        await scene.until(lambda node: node.status.images)
        assert trio.current_time() - began <= 10.4
    assert len(scene.asked("patch")) == 1


async def test_how_often_a_node_is_looked_at_and_reported_is_configured(
    scene: Scene, autojump_clock: MockClock
) -> None:
    profile = a_profile(
        node_status_update_frequency=timedelta(seconds=2),
        node_status_report_frequency=timedelta(seconds=20),
    )
    async with scene.running(profile):
        await scene.until(ready)
        await trio.sleep(110)
        assert 4 <= len(scene.asked("patch")) <= 6
        scene.observed = seen(addresses=("10.0.0.9",))
        began = trio.current_time()
        await scene.until(lambda node: node.status.addresses[0].address == "10.0.0.9")
        assert trio.current_time() - began <= 2.1


async def test_another_pace_holds_at_once(scene: Scene, autojump_clock: MockClock) -> None:
    slow, quick = (
        a_profile(
            node_status_update_frequency=timedelta(hours=seconds),
            node_status_report_frequency=timedelta(hours=seconds),
        )
        for seconds in (1, 1 / 360)
    )
    async with scene.running(slow):
        await scene.until(ready)
        await trio.sleep(60)
        assert len(scene.asked("patch")) <= 1
        scene.use(quick.settings)
        await trio.sleep(100)
        assert 8 <= len(scene.asked("patch")) <= 13


async def test_losing_readiness_is_reported_at_once_with_an_event(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        await trio.sleep(1)
        scene.observed = seen(errors=("container runtime is down",))
        scene.wake()
        node = await scene.until(lambda node: not ready(node))
        await trio.sleep(0.1)
    assert condition(node.status, "Ready").reason == "KubeletNotReady"
    assert scene.reasons[-1] == "NodeNotReady"


async def test_a_ready_node_stays_so_while_its_next_agent_starts(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
    scene.observed = evolve(UNREADY, is_early=True)
    async with scene.running():
        await trio.sleep(1)
        assert scene.asked("patch") == []
        scene.observed = UNREADY
        await scene.until(lambda node: not ready(node))


async def test_an_agent_that_has_just_started_does_not_call_its_node_ready(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.observed = evolve(UNREADY, is_early=True)
    async with scene.running():
        node = await scene.until(lambda node: node.status.conditions)
        await trio.sleep(1)
    assert not ready(node)
    assert not ready(scene.node)


async def test_conditions_of_others_survive_a_report(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        network = {"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}
        scene.server.patch(
            NODES, NAME, body={"status": {"conditions": [network]}}, subresource="status"
        )
        scene.observed = seen(errors=("container runtime is down",))
        scene.wake()
        node = await scene.until(lambda node: not ready(node))
    assert condition(node.status, "NetworkUnavailable").reason == "RouteCreated"


async def test_what_a_controller_made_unknown_is_put_right(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        scene.server.patch(
            NODES, NAME, body={"status": {"conditions": [unknown]}}, subresource="status"
        )
        await scene.until(ready)


async def test_a_node_that_is_there_is_adopted(scene: Scene, autojump_clock: MockClock) -> None:
    other = a_node(labels={"team": "red", "kubernetes.io/arch": "arm64"})
    status = evolve(other.status, capacity={"example.com/gpu": Quantity(2)})
    scene.server.create(NODES, evolve(other, status=status, spec=NodeSpec(unschedulable=True)))
    async with scene.running():
        node = await scene.until(ready)
        await trio.sleep(0.1)
    assert node.metadata.labels["team"] == "red"
    assert node.metadata.labels["kubernetes.io/arch"] == "amd64"
    assert node.metadata.labels["kubernetes.io/hostname"] == NAME
    assert node.spec.unschedulable
    assert node.status.capacity["example.com/gpu"] == Quantity(0)
    assert scene.reasons == ["NodeNotSchedulable", *SUFFICIENT, "NodeReady"]


async def test_a_node_that_may_not_be_created_but_is_there_is_adopted(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.create(NODES, a_node())
    scene.server.faults.add(
        RequestFault(verb="create", resource="nodes", code=403, reason="Forbidden")
    )
    async with scene.running():
        await scene.until(ready)


async def test_an_agent_that_shall_not_register_waits_for_its_node(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running(a_profile(register_node=False)):
        await trio.sleep(30)
        assert scene.asked("create", "patch") == []
        scene.server.create(NODES, Node(metadata=ObjectMeta(name=NAME)))
        await scene.until(ready)


async def test_registration_is_tried_until_the_api_server_is_there(
    scene: Scene, autojump_clock: MockClock
) -> None:
    scene.server.go_away()
    async with scene.running():
        await trio.sleep(60)
        scene.server.come_back()
        began = trio.current_time()
        await scene.until(ready)
        assert trio.current_time() - began <= 7.1


async def test_an_outage_of_five_minutes_loses_nothing(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        scene.server.go_away()
        scene.observed = seen(images=(ContainerImage(names=("a:1",), size_bytes=1),))
        await trio.sleep(300)
        scene.server.come_back()
        began = trio.current_time()
        await scene.until(lambda node: node.status.images)
        assert trio.current_time() - began <= 10.4


async def test_after_an_outage_what_controllers_did_meanwhile_is_put_right_without_a_watch(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        scene.server.faults.add(RequestFault(verb="watch", code=503))
        scene.server.drop_watches()
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        scene.server.patch(
            NODES, NAME, body={"status": {"conditions": [unknown]}}, subresource="status"
        )
        await trio.sleep(60)
        assert not ready(scene.node), "nobody has told of it"
        scene.returned()
        began = trio.current_time()
        await scene.until(ready)
        assert trio.current_time() - began < 1


async def test_a_report_is_tried_five_times_in_a_round(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        await trio.sleep(1)
        refusal = RequestFault(verb="patch", resource="nodes", code=409, reason="Conflict", times=4)
        scene.server.faults.add(refusal)
        scene.observed = seen(errors=("container runtime is down",))
        scene.wake()
        began = trio.current_time()
        await scene.until(lambda node: not ready(node))
        assert trio.current_time() - began < 1
    assert len(scene.asked("patch")) == 5
    assert len(scene.asked("get")) == 4


async def test_a_deleted_node_is_not_made_again_but_one_that_others_make_is_reported_on(
    scene: Scene, autojump_clock: MockClock
) -> None:
    async with scene.running():
        await scene.until(ready)
        scene.server.delete(NODES, NAME)
        await trio.sleep(60)
        assert scene.server.find(NODES, NAME) is None
        scene.server.create(NODES, Node(metadata=ObjectMeta(name=NAME)))
        await scene.until(ready)


async def test_a_reboot_is_told_once(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.running(a_profile(a_machine(boot_id="boot-1"))):
        await scene.until(ready)
    scene.view = NodeView(NAME)
    async with scene.running(a_profile(a_machine(boot_id="boot-2"))):
        await scene.until(lambda node: boot_id(node) == "boot-2")
        await trio.sleep(600)
    told = [event.message for event in scene.events if event.reason == "Rebooted"]
    assert told == [f"Node {NAME} has been rebooted, boot id: boot-2"]


async def test_cordoning_is_an_event(scene: Scene, autojump_clock: MockClock) -> None:
    async with scene.running():
        await scene.until(ready)
        for unschedulable in (True, False):
            scene.server.patch(NODES, NAME, body={"spec": {"unschedulable": unschedulable}})
            await trio.sleep(11)
    assert scene.reasons[-2:] == ["NodeNotSchedulable", "NodeSchedulable"]


async def test_a_look_that_stumbles_is_made_again(
    scene: Scene, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [True]
    observe = Scene.observe

    async def stumble(self: Scene) -> Observation:
        if failing[0]:
            raise RuntimeError("a bug")
        return await observe(self)

    monkeypatch.setattr(Scene, "observe", stumble)
    with capture_logs() as logs:
        async with scene.running():
            await trio.sleep(30)
            failing[0] = False
            await scene.until(ready)
            failing[0] = True
            await trio.sleep(30)
            failing[0] = False
            scene.observed = UNREADY
            await scene.until(lambda node: not ready(node))
    assert any(entry.get("exc_info") for entry in logs)
