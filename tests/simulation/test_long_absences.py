"""A device plugin that stays away for hours, in which the agent is killed, and comes back."""

import random
from collections.abc import Mapping
from pathlib import Path

import trio
from attrs import evolve

from tests.simulation.device_plugin import SimulatedDevicePlugin
from tests.simulation.devices import DEVICES, VARIABLE, DeviceRules
from tests.simulation.node import NODE
from tests.simulation.record import Record
from tests.simulation.scenes import Scene, play, pod
from tests.simulation.shapes import DEVICE
from trio_kubelet.agent.node_parts import PLUGINS_REGISTRY
from trio_kubelet.k8s import NODES, Pod, Quantity, ResourceRequirements

HOUR = 3600.0
A_WHILE = 240.0
"""Longer than a plugin takes to come, and an agent to find it."""


def with_device(name: str) -> Pod:
    """A pod whose container asks for a device."""
    plain = pod(name)
    (container,) = plain.spec.containers
    amounts = {DEVICE: Quantity(1)}
    resources = ResourceRequirements(requests=amounts, limits=amounts)
    spec = evolve(plain.spec, containers=(evolve(container, resources=resources),))
    return evolve(plain, spec=spec)


def given(scene: Scene) -> Mapping[str, tuple[str, str]]:
    """The container of each pod that runs, and its device."""
    found = {}
    for each in scene.running():
        variables = {each.key: str(each.value, "ascii") for each in each.config.envs}
        found[each.sandbox.config.metadata.name] = (each.id, variables[VARIABLE])
    return found


def healthy(scene: Scene) -> int:
    """The number of devices that the node has for pods."""
    allocatable = scene.node.api.get(NODES, NODE).status.allocatable
    return allocatable[DEVICE].value if DEVICE in allocatable else 0


def test_pods_keep_their_devices_and_others_wait_while_a_plugin_is_away(tmp_path: Path) -> None:
    violations: list[object] = []

    def violated(*words: object) -> None:
        violations.extend(words)

    async def scene(scene: Scene) -> None:
        rules = DeviceRules(scene.node, Record(tmp_path), violated)
        scene.node.api.storage.observers.append(rules.on_write)
        registry = scene.node.pod_folders.parent / PLUGINS_REGISTRY
        async with trio.open_nursery() as nursery:
            plugin = SimulatedDevicePlugin(registry, random.Random(1), nursery, rules)
            await plugin.process.start_later(plugin)
            await trio.sleep(A_WHILE)
            assert healthy(scene) == len(DEVICES)
            scene.put(with_device("first"))
            await trio.sleep(A_WHILE)
            before = given(scene)
            assert before.keys() == {"first"}

            await plugin.process.stop()
            await trio.sleep(HOUR)
            assert healthy(scene) == 0
            scene.node.kill_agent()
            await scene.node.agent_ended()
            scene.node.start_agent()
            scene.put(with_device("second"))
            await trio.sleep(HOUR)
            assert given(scene) == before

            await plugin.process.start_later(plugin)
            await trio.sleep(A_WHILE)
            after = given(scene)
            assert after.keys() == {"first", "second"}
            assert after["first"] == before["first"]
            assert after["second"][1] != after["first"][1]
            assert healthy(scene) == len(DEVICES)
            nursery.cancel_scope.cancel()

    play(tmp_path, scene)
    assert violations == []
