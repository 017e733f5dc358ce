"""Small scenes on a simulated node: a few steps with the real agent, in simulated time."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
import trio.testing
from attrs import define, evolve, field

from state_machines.probe import ProbeKind
from tests.simulation.determinism import deterministic
from tests.simulation.node import NODE, LogEntry, Node, WallClock
from trio_kubelet.eviction.pressure import Assessment
from trio_kubelet.hollow import BEHAVIOUR_ANNOTATION, HollowOptions, HollowRuntime
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import PODS, Container, ContainerPort, ObjectMeta, Pod, PodSpec, PodStatus
from trio_kubelet.k8s.codec import encode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.telemetry.events import RecordedEvent
from trio_kubelet.telemetry.journal import Entry

RUNNING = cri.ContainerState.CONTAINER_RUNNING


@define
class Watcher:
    """Remembers errors, and statuses that the API server refused."""

    errors: list[LogEntry] = field(factory=list)

    def on_log(self, entry: LogEntry) -> None:
        if entry["level"] == "error" or entry["event"] == "pod status refused":
            self.errors.append(entry)

    def on_status(self, pod: Pod, status: PodStatus) -> None:
        """Nothing of interest."""

    def on_observed(self, assessment: Assessment) -> None:
        """Nothing of interest."""

    def on_recorded(self, event: RecordedEvent) -> None:
        """Nothing of interest."""

    def on_agent_ended(self, journal: tuple[Entry, ...]) -> None:
        """Nothing of interest."""

    def on_probe(self, container_id: str, kind: ProbeKind, succeeded: bool) -> None:
        """Nothing of interest."""


@define
class Scene:
    """A node with an agent, and what is asked about it."""

    node: Node
    clock: WallClock

    @property
    def runtime(self) -> HollowRuntime:
        return self.node.runtime

    async def restart_agent(self) -> None:
        """End the agent, and start another one."""
        self.node.stop_agent()
        await self.node.agent_ended()
        self.node.start_agent()
        await trio.sleep(10)

    def put(self, pod: Pod) -> None:
        """Create a pod on the node, or change it."""
        api, meta = self.node.api, pod.metadata
        if (known := api.find(PODS, meta.name, meta.namespace)) is None:
            api.create(PODS, evolve(pod, spec=evolve(pod.spec, node_name=NODE)))
        else:
            api.update(PODS, evolve(known, spec=evolve(pod.spec, node_name=NODE)))

    def status(self, name: str = "web") -> PodStatus:
        """What the API shows of a pod."""
        return self.node.api.get(PODS, name, "default").status

    def mirror(self, name: str) -> Pod | None:
        """What shows a static pod, if anything does."""
        return self.node.api.find(PODS, f"{name}-{NODE}", "default")

    def running(self) -> list[HollowContainer]:
        return [c for c in self.runtime.containers if c.state == RUNNING]


Play = Callable[[Scene], Awaitable[None]]


def play(tmp_path: Path, scene: Play, options: HollowOptions | None = None) -> None:
    """Run a scene in simulated time; an error in the agent's log fails it."""
    watcher = Watcher()

    async def run() -> None:
        clock = WallClock()
        async with trio.open_nursery() as nursery:
            runtime = HollowRuntime(clock, nursery, options)
            node = Node(tmp_path, clock, runtime, nursery, watcher)
            node.start_agent()
            await scene(Scene(node=node, clock=clock))
            node.stop_agent()
            await node.agent_ended()
            nursery.cancel_scope.cancel()

    with deterministic(0):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert watcher.errors == []


def pod(
    name: str = "web",
    *,
    image: str = "registry.example.com/app:1",
    policy: str = "Always",
    host_port: int | None = None,
    behaviour: str = "{}",
) -> Pod:
    """A pod with one container, which runs until it is stopped if its behaviour says nothing."""
    ports = (ContainerPort(container_port=80, host_port=host_port),) if host_port else ()
    return with_defaults(
        Pod(
            metadata=ObjectMeta(
                name=name,
                namespace="default",
                uid=f"uid-{name}",
                annotations={BEHAVIOUR_ANNOTATION: behaviour},
            ),
            spec=PodSpec(
                containers=(Container(name="main", image=image, ports=ports),),
                restart_policy=policy,
                termination_grace_period_seconds=1,
            ),
        )
    )


def write_manifest(node: Node, pod: Pod) -> None:
    """Put a pod's manifest into the folder of static pods."""
    document = {**encode(pod), "apiVersion": "v1", "kind": "Pod"}
    (node.manifests / f"{pod.metadata.name}.json").write_text(json.dumps(document))


def remove_manifest(node: Node, pod: Pod) -> None:
    """Take a pod's manifest out of the folder of static pods."""
    (node.manifests / f"{pod.metadata.name}.json").unlink()
