"""Pressure on a simulated node whose agent is killed at any time: who goes, and what is said."""

import random
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.simulation.node import NODE
from tests.simulation.scenes import Scene, play, pod, write_manifest
from trio_kubelet.config.eviction import Resource
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.k8s import NODES, Pod, Quantity, ResourceRequirements

MI = 1 << 20
ENOUGH, TOO_LITTLE = 8 << 30, 90 * MI
CRITICAL = 2_000_000_000
ORDER = ["above", "above-dear", "within"]
"""In which pods go; two more never do."""


def asking(name: str, memory: str, priority: int = 0) -> Pod:
    """A pod that uses 8 MiB, as all do here, and asks for so much."""
    made = pod(name)
    (container,) = made.spec.containers
    resources = ResourceRequirements(requests={"memory": Quantity(memory)})
    containers = (evolve(container, resources=resources),)
    return evolve(made, spec=evolve(made.spec, containers=containers, priority=priority))


def under_pressure(scene: Scene) -> bool:
    conditions = scene.node.api.get(NODES, NODE).status.conditions
    return {c.type: c.status for c in conditions}["MemoryPressure"] == "True"


async def live(scene: Scene, chance: random.Random, enough_below: int, seconds: int) -> None:
    """Let time pass; memory is short while so many containers run, and the agent may be killed."""

    async def measure_at_the_end_of(container: HollowContainer) -> None:
        await container.stopped.wait()
        measure()

    def measure() -> None:
        is_short = len(scene.running()) >= enough_below
        scene.node.load.leave(Resource.MEMORY, TOO_LITTLE if is_short else ENOUGH)

    measure()
    async with trio.open_nursery() as nursery:
        for each in scene.running():
            nursery.start_soon(measure_at_the_end_of, each)
        for _ in range(seconds * 2):
            if chance.random() < 0.03:
                scene.node.kill_agent()
                await scene.node.agent_ended()
                scene.node.start_agent()
            await trio.sleep(0.5)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(1, 5))
def test_as_many_pods_go_as_must_in_their_order_whenever_the_agent_is_killed(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    number = chance.randint(1, len(ORDER))
    gone, stay = ORDER[:number], [*ORDER[number:], "critical"]

    async def scene(scene: Scene) -> None:
        scene.node.settings = {"eviction_hard": {"memory.available": "100Mi"}}
        await scene.restart_agent()
        scene.put(asking("within", "64Mi"))
        scene.put(asking("above", "1Mi"))
        scene.put(asking("above-dear", "1Mi", 7))
        scene.put(asking("critical", "1Mi", CRITICAL))
        write_manifest(scene.node, pod("static"))
        await trio.sleep(60)
        assert len(scene.running()) == len(ORDER) + 2
        await live(scene, chance, len(ORDER) + 3 - number, 120)
        await trio.sleep(60)
        for name in gone:
            status = scene.status(name)
            assert (status.phase, status.reason) == ("Failed", "Evicted")
            assert status.message.startswith("The node was low on resource: memory. ")
            assert any(c.type == "DisruptionTarget" for c in status.conditions)
        assert {scene.status(name).phase for name in stay} == {"Running"}
        left = {c.sandbox.config.metadata.name for c in scene.runtime.containers}
        assert left == {*stay, f"static-{NODE}"}
        await trio.sleep(400)
        assert not under_pressure(scene)

    play(tmp_path, scene)
