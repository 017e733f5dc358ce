"""Small scenes on a simulated node: a few steps with the real agent, in simulated time."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
import trio.testing
from attrs import define, field

from tests.simulation.determinism import deterministic
from tests.simulation.node import LogEntry, Node, WallClock
from trio_kubelet.hollow import HollowOptions, HollowRuntime
from trio_kubelet.hollow.records import Container
from trio_kubelet.k8s import Container as ContainerSpec
from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec, PodStatus
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.telemetry.journal import Entry

RUNNING = cri.ContainerState.CONTAINER_RUNNING


@define
class Watcher:
    """Remembers errors."""

    errors: list[LogEntry] = field(factory=list)

    def on_log(self, entry: LogEntry) -> None:
        if entry["level"] == "error":
            self.errors.append(entry)

    def on_status(self, pod: Pod, status: PodStatus) -> None:
        """Nothing of interest."""

    def on_agent_ended(self, journal: tuple[Entry, ...]) -> None:
        """Nothing of interest."""


@define
class Scene:
    """A node with an agent, and what is asked about it."""

    node: Node
    clock: WallClock

    @property
    def runtime(self) -> HollowRuntime:
        return self.node.runtime

    def running(self) -> list[Container]:
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


def pod(*, image: str = "registry.example.com/app:1", policy: str = "Always") -> Pod:
    return with_defaults(
        Pod(
            metadata=ObjectMeta(name="web", namespace="default", uid="u1"),
            spec=PodSpec(
                containers=(ContainerSpec(name="main", image=image),),
                restart_policy=policy,
                termination_grace_period_seconds=1,
            ),
        )
    )
