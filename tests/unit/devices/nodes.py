"""A node's devices, with plugins in the same process, on a mock clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from lab.device_plugin import RESOURCE, DeviceBehaviour, LabDevicePlugin
from tests.trio_clock import TrioClock
from trio_kubelet.devices import DeviceManager, DevicePlugins, DeviceRecords
from trio_kubelet.devices import plugins as plugins_module
from trio_kubelet.devices.plugins import Endpoint
from trio_kubelet.k8s import (
    Container,
    ContainerExtendedResourceRequest,
    ContainerRestartPolicy,
    ObjectMeta,
    Pod,
    PodExtendedResourceClaimStatus,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.telemetry import Journal

WAIT_SECONDS = 300.0


class Line(InProcess):
    """The way to a plugin in this process; it goes dead when the plugin is killed."""

    def __init__(self, plugin: LabDevicePlugin) -> None:
        super().__init__(plugin)

    def close(self) -> None:
        """There is nothing to close."""


@define
class DeviceNode:
    """The devices of a node; `reachable` are the plugins at their sockets."""

    folder: Path
    manager: DeviceManager
    reachable: dict[str, LabDevicePlugin] = field(factory=dict)
    told: list[str] = field(factory=list)

    def plugin(self, *devices: str, **behaviour: object) -> LabDevicePlugin:
        """A plugin that is there, with healthy devices of these ids."""
        said = DeviceBehaviour(**behaviour)  # type: ignore[arg-type]
        folder = self.folder / said.resource.replace("/", "_")
        folder.mkdir(exist_ok=True)
        plugin = LabDevicePlugin(folder, self.folder, said, f"{folder.name}.sock")
        plugin.set_devices(dict.fromkeys(devices, "Healthy"))
        self.reachable[str(plugin.socket)] = plugin
        plugin.socket.touch()
        return plugin

    async def register(self, plugin: LabDevicePlugin) -> Endpoint:
        """Register a plugin; returns when its devices are known."""
        endpoint = await self.manager.plugins.connect(plugin.behaviour.resource, str(plugin.socket))
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(1)
        return endpoint

    async def kill(self, plugin: LabDevicePlugin) -> None:
        """The plugin dies, and its socket with it."""
        plugin.socket.unlink()
        del self.reachable[str(plugin.socket)]
        plugin.set_faults(ListAndWatch={"fail": "killed"})
        plugin.changed.set()
        await trio.sleep(1)
        plugin.set_faults()

    async def comes_to_have(self, healthy: int) -> bool:
        """True once so many devices are healthy, before a plugin that is away is given up.

        The clock does not wait for threads; short pauses leave them time.
        """
        for _ in range(2000):
            if self.manager.plugins.amounts().get(RESOURCE, (0, 0))[1] == healthy:
                return True
            await trio.sleep(plugins_module.GRACE_SECONDS / 3000)
        return False

    def has(self, pod: Pod, container: str = "main", resource: str = RESOURCE) -> set[str]:
        """The devices of a container."""
        record = self.manager.records.get(pod.metadata.uid, container, resource)
        return set(record.ids) if record is not None else set()


def no_devices(folder: Path = Path("/nowhere")) -> DeviceManager:
    """The devices of a node without any."""
    plugins = DevicePlugins(Journal(TrioClock()))
    return DeviceManager(plugins, DeviceRecords(folder), wait_seconds=0.0)


@asynccontextmanager
async def device_node(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, wait_seconds: float = WAIT_SECONDS
) -> AsyncIterator[DeviceNode]:
    """Run the devices of a node on what its folder holds."""
    plugins = DevicePlugins(Journal(TrioClock()))
    manager = DeviceManager(plugins, DeviceRecords(folder), wait_seconds=wait_seconds)
    node = DeviceNode(folder, manager)
    manager.on_pods.add(node.told.extend)
    manager.on_health.add(node.told.extend)

    def line(path: str, **_: object) -> InProcess:
        if path not in node.reachable:
            return Line(_Unreachable())  # type: ignore[arg-type]
        return Line(node.reachable[path])

    monkeypatch.setattr(plugins_module, "Channel", line)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.run)
        await plugins.running.wait()
        yield node
        nursery.cancel_scope.cancel()


class _Unreachable:
    async def get_device_plugin_options(self, _: object) -> None:
        await trio.lowlevel.checkpoint()
        raise RpcError(Code.UNAVAILABLE, "cannot connect")


def device_container(
    name: str = "main", count: int = 1, resource: str = RESOURCE, *, sidecar: bool = False
) -> Container:
    """A container that asks for devices."""
    limits = {resource: Quantity(count)} if count else {}
    return Container(
        name=name,
        image="image",
        resources=ResourceRequirements(limits=limits, requests=limits),
        restart_policy=ContainerRestartPolicy.ALWAYS if sidecar else "",
    )


def device_pod(uid: str, *containers: Container, init: Sequence[Container] = ()) -> Pod:
    """A pod of these containers, or of one that asks for one device."""
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(containers=containers or (device_container(),), init_containers=tuple(init)),
    )


def with_claim(pod: Pod, resource: str = RESOURCE) -> Pod:
    """The pod as the scheduler leaves it that has given it a resource by a claim (KEP-5004)."""
    mappings = tuple(
        ContainerExtendedResourceRequest(
            container_name=each.name, request_name=each.name, resource_name=resource
        )
        for each in pod.spec.admitted_containers
    )
    backing = PodExtendedResourceClaimStatus(
        request_mappings=mappings, resource_claim_name="extended"
    )
    return evolve(pod, status=PodStatus(extended_resource_claim_status=backing))


def devices(count: int) -> tuple[str, ...]:
    """The ids of devices."""
    return tuple(f"dev-{number}" for number in range(count))
