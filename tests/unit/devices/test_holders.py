"""Devices of containers that run while the checkpoint is damaged."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from tests.unit.devices.nodes import (
    DeviceNode,
    device_container,
    device_node,
    device_pod,
    devices,
)
from trio_kubelet.devices import RunningContainer
from trio_kubelet.devices import holders as holders_module
from trio_kubelet.devices.holders import ANNOTATION
from trio_kubelet.devices.manager import AllocationError, DevicesAwaitedError
from trio_kubelet.devices.records import CHECKPOINT
from trio_kubelet.k8s import Pod

POD, OTHER = device_pod("u1"), device_pod("u2")
LONG_AGO, IN_FUTURE = 1, 2**62


def running(
    pod: Pod, annotations: Mapping[str, str], name: str = "main", created_at_ns: int = LONG_AGO
) -> RunningContainer:
    return RunningContainer(
        pod_uid=pod.metadata.uid,
        name=name,
        created_at_ns=created_at_ns,
        annotations=annotations,
    )


async def started(node: DeviceNode, pod: Pod) -> RunningContainer:
    """Start the container of a pod; returns it as the runtime has it."""
    await node.manager.prepare(pod, ())
    allocation = await node.manager.allocation(pod, pod.spec.containers[0])
    return running(pod, allocation.annotations)


def damage(folder: Path, text: str = "{") -> None:
    (folder / CHECKPOINT).write_text(text)


async def test_devices_of_a_container_that_runs_are_known_though_the_checkpoint_is_damaged(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        container, before = await started(node, POD), node.has(POD)
    damage(folder)
    for _ in range(2):  # The next agent finds a sound file, and the container still.
        async with device_node(folder, monkeypatch) as node:
            node.manager.recover([container])
            plugin = node.plugin(*devices(2))
            await node.register(plugin)
            await node.manager.prepare(POD, {"main"})
            assert node.has(POD) == before
            assert node.manager.resource_statuses("u1")
            await node.manager.prepare(OTHER, ())
            assert node.has(OTHER) == set(devices(2)) - before
            assert "Available: 0" in node.manager.refusal(device_pod("u3"), [POD, OTHER])
            await node.manager.release("u2")


async def test_a_container_that_is_made_anew_has_its_devices_allocated_anew(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        container, before = await started(node, POD), node.has(POD)
    damage(folder)
    async with device_node(folder, monkeypatch) as node:
        node.manager.recover([container])
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        await node.manager.prepare(POD, {"main"})
        await node.manager.prepare(POD, ())
        assert node.has(POD) == before
        given = await node.manager.allocation(POD, POD.spec.containers[0])
        assert given.variables == {"LAB_DEVICES": ",".join(before)}
    async with device_node(folder, monkeypatch) as node:
        assert node.has(POD) == before, "it is on the disk again"


async def test_the_runtime_is_believed_where_the_checkpoint_says_something_else(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        container = await started(node, POD)
        (device,) = node.has(POD)
    damage(folder, (folder / CHECKPOINT).read_text().replace(device, "dev-9"))
    async with device_node(folder, monkeypatch) as node:
        assert node.has(POD) == {"dev-9"}
        node.manager.recover([container])
        assert node.has(POD) == {device}
    assert (folder / f"{CHECKPOINT}.damaged").exists()


@pytest.mark.parametrize("most_bytes", [0, holders_module.MAX_BYTES])
async def test_a_plugin_cannot_say_in_the_name_of_the_agent_which_devices_a_container_has(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, most_bytes: int
) -> None:
    monkeypatch.setattr(holders_module, "MAX_BYTES", most_bytes)
    said = f'[{{"ResourceName":"{RESOURCE}","DeviceIDs":{{"-1":["dev-1"]}}}}]'
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        plugin.set_faults(Allocate={"annotations": {ANNOTATION: said}})
        await node.register(plugin)
        container = await started(node, POD)
        assert "lab.example.com/devices" in container.annotations
    async with device_node(folder, monkeypatch) as node:
        node.manager.recover([container])
        assert node.has(POD) == {"dev-0"}


async def test_no_device_is_handed_out_while_it_is_not_known_who_has_which(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(folder)
    others_resource = device_pod("u3", device_container(resource="example.com/nic"))
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(4)))
        await node.register(node.plugin("nic", resource="example.com/nic"))
        node.manager.recover([running(POD, {})])
        with pytest.raises(DevicesAwaitedError, match=r"nobody knows which devices .*: u1"):
            await node.manager.prepare(others_resource, ())
        await node.manager.prepare(POD, {"main"})
        await node.manager.prepare(others_resource, ())
        assert node.manager.refusal(OTHER, [POD]) == "", "it is to wait"
        with pytest.raises(DevicesAwaitedError, match=rf"{RESOURCE} pods have .*: u1"):
            await node.manager.prepare(OTHER, ())
        assert not node.has(OTHER)
        node.told.clear()
        await node.manager.release("u1")
        assert node.told == ["u2"]
        await node.manager.prepare(OTHER, ())
        assert len(node.has(OTHER)) == 1


async def test_a_container_that_ends_is_in_doubt_no_longer_and_may_have_devices(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(folder)
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        node.manager.recover([running(POD, {ANNOTATION: "no list"})])
        await node.manager.prepare(POD, {"main"})
        with pytest.raises(DevicesAwaitedError):
            await node.manager.prepare(OTHER, ())
        await node.manager.prepare(POD, ())
        assert len(node.has(POD)) == 1
        await node.manager.prepare(OTHER, ())
        assert not node.has(OTHER) & node.has(POD)


async def test_a_pod_that_waits_for_what_is_in_doubt_is_rejected_in_the_end(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(folder)
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        node.manager.recover([running(POD, {})])
        with pytest.raises(DevicesAwaitedError):
            await node.manager.prepare(OTHER, ())
        await trio.sleep(301)
        with pytest.raises(AllocationError, match="Available: 0"):
            await node.manager.prepare(OTHER, ())


@pytest.mark.parametrize("is_damaged", [True, False])
async def test_containers_that_are_younger_than_the_damage_are_in_no_doubt(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    if is_damaged:
        damage(folder)
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        created_at_ns = IN_FUTURE if is_damaged else LONG_AGO
        node.manager.recover([running(POD, {}, created_at_ns=created_at_ns)])
        await node.manager.prepare(OTHER, ())
        assert len(node.has(OTHER)) == 1
