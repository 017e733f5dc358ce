"""Calls of a plugin that are under way at the same time, for pods that were admitted together."""

from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from tests.unit.devices.nodes import device_container, device_node, device_pod, devices

PODS = [device_pod(f"u{number}") for number in range(3)]
SLOW_SECONDS = 20


@pytest.mark.parametrize("method", ["GetPreferredAllocation", "Allocate"])
async def test_pods_that_wait_for_slow_calls_at_once_have_a_device_each(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Also where the plugin prefers the same device for all of them."""
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(3), preferred=("dev-1",))
        await node.register(plugin)
        plugin.set_faults(**{method: {"slow": SLOW_SECONDS}})
        for number, pod in enumerate(PODS):
            assert node.manager.refusal(pod, PODS[:number]) == ""
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for pod in PODS:
                nursery.start_soon(node.manager.prepare, pod, ())
            await trio.testing.wait_all_tasks_blocked()
            assert len(plugin.calls(method)) == len(PODS), "no call waits for another one"
        assert trio.current_time() < began_at + 2 * SLOW_SECONDS
        one_each = [[each] for each in devices(3)]
        assert sorted(sorted(node.has(pod)) for pod in PODS) == one_each
        assert sorted(call["ids"] for call in plugin.calls("Allocate")) == one_each


async def test_devices_of_calls_that_are_under_way_are_not_admitted_for_others(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = PODS[:2]
    both = device_pod("both", device_container(count=2))
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        plugin.set_faults(Allocate={"slow": SLOW_SECONDS})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.manager.prepare, first, ())
            await trio.testing.wait_all_tasks_blocked()
            now = trio.current_time()
            assert node.manager.refusal(second, [first]) == ""
            assert "Requested: 2, Available: 1" in node.manager.refusal(both, [first])
            assert trio.current_time() == now, "the answer does not wait for the plugin"
            plugin.set_faults()
            await node.manager.prepare(second, ())
            assert trio.current_time() < now + SLOW_SECONDS
            assert len(node.manager.records.held(RESOURCE)) == 2
        assert node.has(first) != node.has(second)
