"""Plugins that flood, flap, lie and talk garbage: what it costs others, and what is left of it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from tests.unit.devices.nodes import device_container, device_node, device_pod, devices
from trio_kubelet.devices import client as client_module
from trio_kubelet.devices import health as health_module
from trio_kubelet.devices import manager as manager_module
from trio_kubelet.devices import plugins as plugins_module
from trio_kubelet.devices import records as records_module
from trio_kubelet.devices.client import DeviceList, DevicePluginClient, DevicePluginError
from trio_kubelet.devices.manager import AllocationError, DevicesAwaitedError
from trio_kubelet.rpc import Transport
from trio_kubelet.rpc.messages import decode, encode
from trio_kubelet.rpc.stubs import v1beta1 as wire

POD, OTHER = device_pod("u1"), device_pod("u2")
OTHER_RESOURCE = "other.example.com/device"
ODD = "a b\n\t\0\x7f\x85é\U0001f9e8\u2028\"'\\<&>%s{}"


async def test_a_plugin_that_comes_and_goes_without_end_leaves_no_tasks(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(20):
            await node.kill(plugin)
            plugin = node.plugin("dev-0")
            await node.register(plugin)
        assert trio.lowlevel.current_statistics().tasks_living <= before + 1
        assert node.manager.plugins.amounts() == {RESOURCE: (1, 1)}


async def test_registrations_of_a_resource_follow_one_another_at_a_distance(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        began_at = trio.current_time()
        for _ in range(20):
            await node.manager.plugins.connect(RESOURCE, str(plugin.socket))
        assert trio.current_time() - began_at >= 18 * plugins_module.PACE_SECONDS


async def test_a_list_that_says_nothing_new_wakes_nobody(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        await node.manager.prepare(POD, ())
        with pytest.raises(DevicesAwaitedError):
            await node.manager.prepare(OTHER, ())
        changes: list[None] = []
        node.manager.plugins.on_change.add(lambda: changes.append(None))
        node.told.clear()
        plugin.set_faults(ListAndWatch={"flood": 1})
        plugin.changed.set()
        await trio.sleep(5)
        assert (node.told, changes) == ([], [])


async def test_a_plugin_that_flaps_wakes_no_pod_that_waits_for_another_resource(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = device_pod("u2", device_container(resource=OTHER_RESOURCE))
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin("dev-0"))
        await node.register(node.plugin("x-0", resource=OTHER_RESOURCE))
    async with device_node(folder, monkeypatch) as node:
        for pod in (POD, other):
            with pytest.raises(DevicesAwaitedError):
                await node.manager.prepare(pod, ())
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        assert node.told == ["u1"]
        await node.manager.prepare(POD, ())
        for health in ("Unhealthy", "Healthy"):
            plugin.set_devices({"dev-0": health})
            await trio.sleep(1)
        await node.manager.release("u1")
        assert set(node.told) == {"u1"}


async def test_resources_that_went_make_place_for_new_ones(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins_module, "MAX_RESOURCES", 1)
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        newer = node.plugin("x-0", resource=OTHER_RESOURCE)
        with pytest.raises(DevicePluginError, match="the node has 1 resources of device plugins"):
            await node.register(newer)
        await node.kill(plugin)
        await trio.sleep(plugins_module.GRACE_SECONDS)
        await node.register(newer)
        assert node.manager.plugins.amounts() == {OTHER_RESOURCE: (1, 1)}


async def test_a_device_of_odd_bytes_is_allocated_and_remembered_as_any_other(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(ODD)
        await node.register(plugin)
        plugin.set_faults(Allocate={"fail": ODD * 100})
        with pytest.raises(AllocationError) as error:
            await node.manager.prepare(POD, ())
        assert len(str(error.value)) < 2 * client_module.MAX_WORDS
        plugin.set_faults(Allocate={"plain": True})
        await node.manager.prepare(POD, ())
    async with device_node(folder, monkeypatch) as node:
        assert node.has(POD) == {ODD}
        (status,) = node.manager.resource_statuses("u1")["main"]
        assert [each.resource_id for each in status.resources] == [ODD]


async def test_a_plugin_that_is_not_available_for_a_while_is_asked_again(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin("dev-0")
        await node.register(plugin)
        plugin.set_faults(Allocate={"fail": "warming up", "code": "UNAVAILABLE"})
        with pytest.raises(DevicesAwaitedError) as awaited:
            await node.manager.prepare(POD, ())
        assert awaited.value.seconds == manager_module.RETRY_SECONDS
        plugin.set_faults()
        await node.manager.prepare(POD, ())
        assert node.has(POD) == {"dev-0"}


async def test_answers_that_are_too_large_cost_their_own_pod(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        plugin.set_faults(Allocate={"mount": "/" + "a" * client_module.MAX_RESPONSE_BYTES})
        with pytest.raises(AllocationError, match="bytes, must be at most"):
            await node.manager.prepare(POD, ())
        plugin.set_faults()
        with monkeypatch.context() as patched:
            patched.setattr(client_module, "MAX_FIELDS", 3)
            with pytest.raises(AllocationError, match="more than 3 fields"):
                await node.manager.prepare(POD, ())
        await node.manager.prepare(POD, ())
        monkeypatch.setattr(records_module, "MAX_RECORDED_BYTES", 300)
        with pytest.raises(AllocationError, match=r"of all device plugins .* must be at most 300"):
            await node.manager.prepare(OTHER, ())
        assert not node.has(OTHER)


async def test_the_answers_of_one_plugin_leave_room_for_those_of_others(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_for_one = client_module.MAX_RESPONSE_BYTES * 4 // 3 + 100
    monkeypatch.setattr(records_module, "MAX_RECORDED_BYTES_OF_RESOURCE", room_for_one)
    others = device_pod("u3", device_container(resource=OTHER_RESOURCE))
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(2))
        await node.register(plugin)
        await node.register(node.plugin("x-0", resource=OTHER_RESOURCE))
        await node.manager.prepare(POD, ())
        with pytest.raises(AllocationError, match=f"of the plugin of {RESOURCE} for pods"):
            await node.manager.prepare(OTHER, ())
        assert len(plugin.calls("Allocate")) == 1, "it is not asked for what cannot be kept"
        await node.manager.prepare(others, ())
        assert node.has(others, resource=OTHER_RESOURCE) == {"x-0"}
        await node.manager.release("u1")
        await node.manager.prepare(OTHER, ())
        assert len(node.has(OTHER)) == 1


async def test_a_pod_with_all_devices_shows_the_health_of_some(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * health_module.MAX_SHOWN_DEVICES
    pod = device_pod("u1", device_container(count=count))
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(*devices(count))
        await node.register(plugin)
        plugin.set_faults(Allocate={"plain": True})
        await node.manager.prepare(pod, ())
        (status,) = node.manager.resource_statuses("u1")["main"]
        assert len(status.resources) == health_module.MAX_SHOWN_DEVICES


async def test_a_pod_waits_for_its_second_device_while_another_pod_is_ending(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = device_pod("u2", device_container("a"), device_container("b"))
    async with device_node(folder, monkeypatch) as node:
        await node.register(node.plugin(*devices(2)))
        await node.manager.prepare(POD, ())
        with pytest.raises(DevicesAwaitedError, match="other pods that are ending"):
            await node.manager.prepare(two, ())
        await node.manager.release("u1")
        await node.manager.prepare(two, ())
        assert node.has(two, "a") | node.has(two, "b") == {"dev-0", "dev-1"}


class RawPlugin(Transport):
    """A plugin that answers everything with the same bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def unary_raw(self, *_: object, **__: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._data

    async def gather_raw(self, *_: object, **__: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._data

    def stream(self, *_: object, **__: object) -> AbstractAsyncContextManager[AsyncIterator]:  # type: ignore[type-arg]
        @asynccontextmanager
        async def opened() -> AsyncIterator[AsyncIterator[wire.ListAndWatchResponse]]:
            async with aclosing(answers()) as found:
                yield found

        async def answers() -> AsyncGenerator[wire.ListAndWatchResponse]:
            await trio.lowlevel.checkpoint()
            yield decode(wire.ListAndWatchResponse, self._data)

        return opened()


_texts = st.text(max_size=5) | st.just("/dev/x")
_answers = st.builds(
    wire.ContainerAllocateResponse,
    envs=st.dictionaries(_texts, _texts, max_size=2),
    mounts=st.lists(
        st.builds(wire.Mount, container_path=_texts, host_path=_texts, read_only=st.booleans()),
        max_size=2,
    ),
    devices=st.lists(
        st.builds(wire.DeviceSpec, container_path=_texts, host_path=_texts, permissions=_texts),
        max_size=2,
    ),
    annotations=st.dictionaries(_texts, _texts, max_size=2),
    cdi_devices=st.lists(st.builds(wire.CdiDevice, name=_texts), max_size=2),
)
_lists = st.builds(
    wire.ListAndWatchResponse,
    devices=st.lists(
        st.builds(
            wire.Device,
            id=_texts,
            health=_texts,
            topology=st.builds(
                wire.TopologyInfo,
                nodes=st.lists(st.builds(wire.NumaNode, id=st.integers(-(2**63), 2**63 - 1))),
            ),
        ),
        max_size=3,
    ),
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """Bytes of a message, of which some are others; or any bytes."""
    lists = st.builds(encode, _lists)
    answers = st.builds(lambda a: encode(wire.AllocateResponse(container_responses=[a])), _answers)
    data = bytearray(draw(st.binary(max_size=40) | lists | answers))
    for place in draw(st.lists(st.integers(0, max(0, len(data) - 1)), max_size=3)) if data else ():
        data[place] = draw(st.integers(0, 255))
    return bytes(data)


@given(_damaged())
def test_bytes_of_any_kind_are_devices_or_an_error_of_the_plugin(data: bytes) -> None:
    client = DevicePluginClient(resource=RESOURCE, transport=RawPlugin(data))
    listed: list[DeviceList] = []

    async def take(given: DeviceList) -> None:
        await trio.lowlevel.checkpoint()
        listed.append(given)

    async def ask() -> None:
        for call in (
            client.options(),
            client.follow(take),
            client.preferred(["a"], [], 1),
            client.allocate(["a"]),
            client.pre_start(["a"]),
        ):
            with suppress(DevicePluginError):
                if isinstance(answer := await call, bytes):
                    client_module.allocation_of([answer])

    trio.run(ask)
    assert all(isinstance(each, DeviceList) for each in listed)
