"""Pods that were admitted before it was known where their devices are."""

from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from lab.device_plugin import RESOURCE
from state_machines.pod import PodEvent
from tests.trio_clock import TrioClock
from tests.unit.devices.nodes import device_node
from tests.unit.resource_managers.machines import TWO_SOCKETS, machine, managers_of
from tests.unit.resource_managers.pods import a_pod, with_devices
from tests.unit.sync.syncer_parts import Others, Waiting, make_parts
from trio_kubelet.config.cpu_policy import CpuPolicyOptions
from trio_kubelet.devices import DeviceManager
from trio_kubelet.k8s import OwnerReference
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resource_managers.cpu_draft import static_cpu_policy
from trio_kubelet.telemetry import Journal


def managers(devices: DeviceManager, root: Path) -> ResourceManagers:
    """Managers that serve a container from one node: CPUs 1-5 and 12-17, or 6-11 and 18-23."""
    on, options = machine(TWO_SOCKETS), CpuPolicyOptions()
    policy = static_cpu_policy(on, options, reserved_cpus="0", reserved_milli=0)
    return managers_of(policy, root, devices=devices, name="single-numa-node")


@pytest.mark.parametrize(("node_of_device", "steps"), [(0, []), (1, ["sandbox", "containers"])])
async def test_late_devices_decide_where_a_pod_is_placed_or_that_it_is_rejected(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    node_of_device: int,
    steps: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    async with device_node(tmp_path, monkeypatch) as node:
        await node.register(node.plugin("a"))
        assert await node.manager.records.keep()
    async with device_node(tmp_path, monkeypatch) as node:
        at, runtime, journal = managers(node.manager, tmp_path), Waiting(), Journal(TrioClock())
        pod = a_pod("u", with_devices(1, "4"))
        for each in (a_pod("first", "10"), pod):
            assert at.reserve(each, lambda _uid: False) is None
        syncer = make_parts(runtime, Others(), journal, managers=at).open_syncer(pod)
        assert (await syncer.sync(pod)).due_seconds is not None
        plugin = node.plugin()
        plugin.set_devices({"a": f"Healthy@{node_of_device}"})
        await node.register(plugin)
        ending = (await syncer.sync(pod)).ending
        assert runtime.steps == steps
        told = {(entry.event, entry.cause) for entry in journal.entries(pod.metadata.key)}
        message = "Resources cannot be allocated with Topology locality"
        if node_of_device == 1:
            assert ending is None
            assert node.manager.records.held(RESOURCE) == {"a"}
        else:
            assert ending is not None
            assert ending.causes == (PodEvent.REJECTED,)
            assert (ending.reason, ending.message) == (
                "TopologyAffinityError",
                f"Pod was rejected: {message}",
            )
            assert ("TopologyAffinityError", message) in told
            assert not node.manager.records.held(RESOURCE)


async def test_pods_of_one_owner_that_late_devices_do_not_suit_are_rejected_at_a_pace(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    owner = OwnerReference(kind="ReplicaSet", name="r", uid="r", controller=True)
    async with device_node(tmp_path, monkeypatch) as node:
        await node.register(node.plugin("a", "b"))
        assert await node.manager.records.keep()
    async with device_node(tmp_path, monkeypatch) as node:
        at, runtime, journal = managers(node.manager, tmp_path), Waiting(), Journal(TrioClock())
        parts = make_parts(runtime, Others(), journal, managers=at)
        pods = [a_pod(name, with_devices(1, "4")) for name in ("u", "v")]
        pods = [
            evolve(pod, metadata=evolve(pod.metadata, owner_references=(owner,))) for pod in pods
        ]
        # The second one has CPUs of another socket than its device when that becomes known.
        assert at.reserve(a_pod("first", "10"), lambda _uid: False) is None
        syncers = []
        for pod in pods:
            assert at.reserve(pod, lambda _uid: False) is None
            syncers.append(parts.open_syncer(pod))
            await syncers[-1].sync(pod)
        plugin = node.plugin()
        plugin.set_devices({"a": "Healthy@0", "b": "Healthy@0"})
        await node.register(plugin)
        assert (await syncers[0].sync(pods[0])).ending is not None
        result = await syncers[1].sync(pods[1])
        assert result.ending is None
        assert result.due_seconds is not None
        assert "v" not in at.cpus.uids(), "it holds nothing while it waits for its end"
        await trio.sleep(result.due_seconds)
        assert (await syncers[1].sync(pods[1])).ending is not None
        assert runtime.steps == []
