"""Devices that are chosen near the CPUs of their container, and devices that are in the way."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from tests.unit.devices.nodes import DeviceNode, device_node
from tests.unit.resource_managers.machines import TWO_SOCKETS, machine, managers_of
from tests.unit.resource_managers.pods import a_pod, with_devices
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.devices.client import Device, DeviceList
from trio_kubelet.devices.manager import DevicesAwaitedError
from trio_kubelet.k8s import Pod
from trio_kubelet.resource_managers import Refusal, ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.resource_managers.device_draft import DevicePool
from trio_kubelet.resource_managers.hints import TopologyHint, mask_of
from trio_kubelet.resource_managers.topology_manager import TOPOLOGY_AFFINITY_ERROR


def managers(
    node: DeviceNode, policy: str = "single-numa-node", *, by_pod: bool = False
) -> ResourceManagers:
    """The managers of a machine of two sockets, each a NUMA node: 0-5,12-17 and 6-11,18-23."""
    cpus = static_cpu_policy(
        machine(TWO_SOCKETS), CpuPolicyOptions(), reserved_cpus="0", reserved_milli=0
    )
    return managers_of(cpus, devices=node.manager, name=policy, by_pod=by_pod)


def reserve(at: ResourceManagers, pod: Pod) -> Refusal | None:
    return at.reserve(pod, lambda _uid: False)


def nodes_of(at: ResourceManagers, uid: str, name: str = "c0") -> set[int]:
    """The NUMA nodes of a container's CPUs."""
    first_cpus = {
        int(each.split("-")[0]) for each in at.placement(uid, name).cpuset_cpus.split(",")
    }
    return {0 if cpu % 12 < 6 else 1 for cpu in first_cpus}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    return folder


async def register(node: DeviceNode, *preferred: str, **devices: str) -> None:
    """Register a plugin of devices: a="Healthy@0" is at NUMA node 0."""
    plugin = node.plugin(preferred=preferred)
    plugin.set_devices(devices)
    await node.register(plugin)


@pytest.mark.parametrize("by_pod", [False, True])
async def test_a_container_has_cpus_and_devices_of_one_node(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, by_pod: bool
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0", b="Healthy@1", c="Healthy@1")
        at = managers(node, by_pod=by_pod)
        pod = a_pod("u", with_devices(2))
        assert reserve(at, pod) is None
        await node.manager.prepare(pod, ())
        assert nodes_of(at, "u") == {1}
        assert node.has(pod, "c0") == {"b", "c"}


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        ("none", None),
        ("best-effort", None),
        ("restricted", TOPOLOGY_AFFINITY_ERROR),
        ("single-numa-node", TOPOLOGY_AFFINITY_ERROR),
    ],
)
async def test_devices_of_one_node_and_cpus_of_another(
    folder: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    refusal: Refusal | None,
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0")
        at = managers(node, policy)
        assert reserve(at, a_pod("first", "10")) is None
        assert nodes_of(at, "first") == {0}
        assert reserve(at, a_pod("u", with_devices(1, "4"))) == refusal
        assert bool(node.manager.records.held(RESOURCE)) == (policy == "best-effort")


async def test_devices_of_admitted_pods_are_not_given_to_others_before_they_are_allocated(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0", b="Healthy@1")
        at = managers(node)
        pods = [a_pod(uid, with_devices(1)) for uid in ("u", "v")]
        assert [reserve(at, pod) for pod in pods] == [None, None]
        for pod in reversed(pods):
            await node.manager.prepare(pod, ())
        assert nodes_of(at, "u") | nodes_of(at, "v") == {0, 1}
        for pod in pods:
            (device,) = node.has(pod, "c0")
            assert nodes_of(at, pod.metadata.uid) == {0 if device == "a" else 1}
        await node.manager.release("u")
        assert len(node.manager.records.held(RESOURCE)) == 1


async def test_a_plugin_is_asked_for_its_preference_among_the_devices_that_are_near(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = {"a": "Healthy@0", "b": "Healthy@1", "c": "Healthy@1"}
    async with device_node(folder, monkeypatch) as node:
        plugin = node.plugin(preferred=("c", "a"))
        plugin.set_devices(devices)
        await node.register(plugin)
        at = managers(node)
        assert reserve(at, a_pod("first", "10")) is None
        pod = a_pod("u", with_devices(1, "4"))
        assert reserve(at, pod) is None
        await node.manager.prepare(pod, ())
        (call,) = plugin.calls("GetPreferredAllocation")
        assert call["available"] == ["b", "c"]
        assert node.has(pod, "c0") == {"c"}


async def test_a_reserved_device_that_became_unhealthy_is_replaced(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0", b="Healthy@0")
        at = managers(node)
        pod = a_pod("u", with_devices(1))
        assert reserve(at, pod) is None
        await register(node, a="Unhealthy@0", b="Healthy@0")
        await node.manager.prepare(pod, ())
        assert node.has(pod, "c0") == {"b"}
        assert node.manager.records.held(RESOURCE) == {"b"}


@pytest.mark.parametrize("told", ["Healthy", "Healthy@9"])
async def test_devices_that_are_at_no_node_of_the_machine_are_in_nobodys_way(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a=told)
        pod = a_pod("u", with_devices(1))
        assert reserve(managers(node), pod) is None
        await node.manager.prepare(pod, ())
        assert node.has(pod, "c0") == {"a"}


async def test_an_app_has_the_devices_of_its_init_container_and_cpus_near_them(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0", b="Healthy@1")
        at = managers(node)
        pod = a_pod("u", with_devices(1, "4"), init=(with_devices(1, "2", "init"),))
        assert reserve(at, pod) is None
        await node.manager.prepare(pod, ())
        assert node.has(pod, "init") == node.has(pod, "c0")
        assert nodes_of(at, "u", "init") == nodes_of(at, "u")


async def forget_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that had devices: its next agent expects their plugin."""
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy")
        assert await node.manager.records.keep()


@pytest.mark.parametrize("was_admitted", [False, True])
async def test_a_pod_is_placed_anew_when_it_is_known_where_its_devices_are(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, was_admitted: bool
) -> None:
    await forget_plugins(folder, monkeypatch)
    async with device_node(folder, monkeypatch) as node:
        at, pod = managers(node), a_pod("u", with_devices(1))
        if was_admitted:
            at.recall(pod, lambda _uid: False)
        else:
            assert reserve(at, pod) is None
        assert nodes_of(at, "u") == {0}
        assert at.place_anew(pod) is None
        with pytest.raises(DevicesAwaitedError):
            await node.manager.prepare(pod, ())
        assert nodes_of(at, "u") == {0}
        await register(node, a="Unhealthy@0", b="Healthy@1")
        assert at.place_anew(pod) is None
        await node.manager.prepare(pod, ())
        assert nodes_of(at, "u") == {1}
        assert node.has(pod, "c0") == {"b"}
        assert at.cpus.assigned == at.cpus.assigned_to("u")


async def test_a_pod_that_is_taken_up_without_devices_is_placed_anew_though_its_plugin_serves(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@1")
        at, pod = managers(node), a_pod("u", with_devices(1))
        at.recall(pod, lambda _uid: False)
        assert nodes_of(at, "u") == {0}
        assert at.place_anew(pod) is None
        await node.manager.prepare(pod, ())
        assert nodes_of(at, "u") == {1}


async def test_a_pod_that_was_placed_with_its_devices_is_left_where_it_is(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0", b="Healthy@1")
        at, pods = managers(node), [a_pod(uid, with_devices(1, "8")) for uid in ("u", "v")]
        assert [reserve(at, pod) for pod in pods] == [None, None]
        before = [at.placement(pod.metadata.uid, "c0") for pod in pods]
        await node.manager.release("u")
        at.release("u")
        assert at.place_anew(pods[1]) is None
        assert at.placement("v", "c0") == before[1]


async def test_a_pod_is_refused_when_no_node_has_both_its_late_devices_and_its_cpus(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await forget_plugins(folder, monkeypatch)
    async with device_node(folder, monkeypatch) as node:
        at, pod = managers(node), a_pod("u", with_devices(1, "4"))
        assert reserve(at, a_pod("first", "10")) is None
        assert nodes_of(at, "first") == {0}
        assert reserve(at, pod) is None
        await register(node, a="Healthy@0")
        assert at.place_anew(pod) == TOPOLOGY_AFFINITY_ERROR
        assert not node.manager.records.held(RESOURCE)


async def test_a_container_whose_devices_went_has_others_near_its_cpus(
    folder: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with device_node(folder, monkeypatch) as node:
        await register(node, a="Healthy@0", b="Healthy@1", c="Healthy@1")
        at, pod = managers(node), a_pod("u", with_devices(1, "4"))
        assert reserve(at, a_pod("first", "10")) is None
        assert reserve(at, pod) is None
        assert node.manager.records.held(RESOURCE) == {"b"}
        await register(node, a="Healthy@0", b="Unhealthy@1", c="Healthy@1")
        await node.manager.prepare(pod, ())
        assert node.has(pod, "c0") == {"c"}


_places = st.lists(
    st.lists(st.integers(0, 3), max_size=2).map(tuple[int, ...]), min_size=1, max_size=6
)


@given(_places, st.data())
def test_hints_are_those_of_a_search_over_all_choices_of_devices(
    places: Sequence[tuple[int, ...]], data: st.DataObject
) -> None:
    devices = {f"d{number}": Device(True, nodes) for number, nodes in enumerate(places)}
    states = st.lists(st.sampled_from("fru"), min_size=len(devices), max_size=len(devices))
    by_state = list(zip(devices, data.draw(states), strict=True))
    free = {name for name, state in by_state if state == "f"}
    again = {name for name, state in by_state if state == "r"}
    count = data.draw(st.integers(1, 3).filter(lambda n: n >= len(again))) if len(again) < 4 else 4
    listed = DeviceList.of(devices).by_nodes
    found = DevicePool(listed, (0, 1, 2, 3), free, again).hints(count, ())
    if not any(places):
        assert found is None
        return
    if len(free | again) < count:
        assert found == []
        return

    def is_at(name: str, nodes: Sequence[int]) -> bool:
        return bool(set(devices[name].numa_nodes) & set(nodes))

    sets = [nodes for size in range(1, 5) for nodes in combinations(range(4), size)]
    sizes = [len(n) for n in sets if sum(is_at(each, n) for each in devices) >= count]
    expected = {
        TopologyHint(mask_of(nodes), preferred=len(nodes) == min(sizes, default=4))
        for nodes in sets
        if any(
            again <= set(chosen) and all(is_at(each, nodes) for each in chosen)
            for chosen in combinations(sorted(free | again), count)
        )
    }
    assert set(found or ()) == expected
