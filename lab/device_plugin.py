r"""A device plugin of ours, for tests.

    python -m lab.device_plugin --folder /tmp/plugin --plugins /var/lib/kubelet/device-plugins

It serves the devices that `devices.json` in its folder names, {"dev-0": "Healthy"}, or "Healthy@1"
for one at NUMA node 1, looks at the
file five times a second, and registers with the node's agent whenever that has a new socket, until
it is killed. Calls are written to `calls.jsonl` in its folder. What it does wrong is asked of
`faults.json` there, at each call: {"Allocate": {"hang": true}}, or {"Allocate": {"slow": 20}} for
one that takes 20 seconds.
"""

import argparse
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from trio_kubelet.rpc import Channel, Code, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs import v1beta1 as wire

RESOURCE = "lab.example.com/device"
LOOK_SECONDS = 0.2
DEADLINE_SECONDS = 10.0


@frozen(kw_only=True)
class DeviceBehaviour:
    """What the plugin offers, and what it wants to be asked."""

    resource: str = RESOURCE
    version: str = "v1beta1"
    pre_start: bool = False
    preferred: tuple[str, ...] = ()
    """Devices that are preferred to others; empty: the agent is to choose."""
    host_device: str = "/dev/null"


@define
class LabDevicePlugin:
    """The services of a device plugin. `agent` is the folder of the agent's socket."""

    folder: Path
    agent: Path
    behaviour: DeviceBehaviour = field(factory=DeviceBehaviour)
    name: str = "lab.sock"
    changed: trio.Event = field(factory=trio.Event)

    @property
    def socket(self) -> Path:
        return self.agent / self.name

    def calls(self, method: str | None = None) -> list[dict[str, Any]]:
        """The calls so far, or those of one method."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        calls: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [call for call in calls if method in (None, call["method"])]

    def set_devices(self, devices: Mapping[str, str]) -> None:
        """Say which devices there are, and how they are."""
        _write_whole(self.folder / "devices.json", devices)
        self.changed.set()
        self.changed = trio.Event()

    def set_faults(self, **faults: Mapping[str, object]) -> None:
        """Say what goes wrong from now on, by method: `hang`, `slow`, `fail` with a `code`."""
        _write_whole(self.folder / "faults.json", faults)

    def devices(self) -> Mapping[str, str]:
        """The devices that there are now."""
        found: Mapping[str, str] = json.loads((self.folder / "devices.json").read_text())
        return found

    async def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """Introduce the plugin to an agent that found it in `plugins_registry`."""
        await self._misbehave("GetInfo")
        return registration.PluginInfo(
            type="DevicePlugin",
            name=self.behaviour.resource,
            endpoint=str(self.socket),
            supported_versions=[self.behaviour.version],
        )

    async def notify_registration_status(
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        """Take note of what came of it."""
        await trio.lowlevel.checkpoint()
        self._note("NotifyRegistrationStatus", error=request.error)
        return registration.RegistrationStatusResponse()

    async def get_device_plugin_options(self, _: wire.Empty) -> wire.DevicePluginOptions:
        """Say which calls the plugin wants."""
        await self._misbehave("GetDevicePluginOptions")
        return wire.DevicePluginOptions(
            pre_start_required=self.behaviour.pre_start,
            get_preferred_allocation_available=bool(self.behaviour.preferred),
        )

    async def list_and_watch(self, _: wire.Empty) -> AsyncIterator[wire.ListAndWatchResponse]:
        """List the devices whenever they are others."""
        last: Mapping[str, str] | None = None
        while True:
            fault = await self._misbehave("ListAndWatch", quiet=True)
            if fault.get("end"):
                return
            if (count := fault.get("flood")) or (now := self.devices()) != last:
                now = {f"dev-{n}": "Healthy" for n in range(count)} if count else now
                last = now
                yield wire.ListAndWatchResponse(
                    devices=[_device(name, told) for name, told in now.items()]
                )
            if not count:
                with trio.move_on_after(LOOK_SECONDS):
                    await self.changed.wait()

    async def get_preferred_allocation(
        self, request: wire.PreferredAllocationRequest
    ) -> wire.PreferredAllocationResponse:
        """Prefer the devices that the behaviour names."""
        asked = request.container_requests[0]
        fault = await self._misbehave(
            "GetPreferredAllocation",
            available=asked.available_device_i_ds,
            must=asked.must_include_device_i_ds,
            size=asked.allocation_size,
        )
        chosen = fault.get("answer") or list(self.behaviour.preferred)
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(device_i_ds=chosen)]
        )

    async def allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        """Give each container a variable with the ids, a device file, a mount and an annotation."""
        ids = list(request.container_requests[0].devices_ids)
        fault = await self._misbehave("Allocate", ids=ids)
        if fault.get("empty"):
            return wire.AllocateResponse()
        if fault.get("plain"):
            return wire.AllocateResponse(container_responses=[wire.ContainerAllocateResponse()])
        name = "LAB_DEVICES" if self.behaviour.resource == RESOURCE else "OTHER_DEVICES"
        answer = wire.ContainerAllocateResponse(
            envs={name: ",".join(ids)},
            devices=[
                wire.DeviceSpec(
                    container_path=f"/dev/{device}",
                    host_path=self.behaviour.host_device,
                    permissions="rw",
                )
                for device in ids
            ],
            mounts=[
                wire.Mount(
                    container_path=fault.get("mount", "/lab-device"),
                    host_path=str(self.folder),
                    read_only=True,
                )
            ],
            annotations={"lab.example.com/devices": ",".join(ids), **fault.get("annotations", {})},
        )
        return wire.AllocateResponse(container_responses=[answer])

    async def pre_start_container(
        self, request: wire.PreStartContainerRequest
    ) -> wire.PreStartContainerResponse:
        """Get devices ready for a container that starts."""
        await self._misbehave("PreStartContainer", ids=list(request.devices_ids))
        return wire.PreStartContainerResponse()

    async def run(self, registry: Path | None = None) -> None:
        """Serve and register, until cancelled.

        With `registry`, a socket of `plugins_registry`, the agent finds the plugin there.
        """
        contracts = (wire.DevicePluginBase, registration.RegistrationBase)
        async with trio.open_nursery() as nursery:
            if registry is not None:
                await nursery.start(partial(serve, [self], self.socket, contracts=contracts))
                await nursery.start(partial(serve, [self], registry, contracts=contracts))
                await trio.sleep_forever()
            while True:
                known = _identity(self.agent / "kubelet.sock")
                async with trio.open_nursery() as serving:
                    await serving.start(partial(serve, [self], self.socket, contracts=contracts))
                    if known is not None and await self._register():
                        await self._agent_is_another(known)
                    await trio.sleep(LOOK_SECONDS)
                    serving.cancel_scope.cancel()

    async def _agent_is_another(self, known: tuple[int, int]) -> None:
        """Return when the agent has another socket; a plugin of others asks inotify."""
        while _identity(self.agent / "kubelet.sock") == known:  # noqa: ASYNC110
            await trio.sleep(LOOK_SECONDS)

    async def _register(self) -> bool:
        channel = Channel(str(self.agent / "kubelet.sock"))
        request = wire.RegisterRequest(
            version=self.behaviour.version,
            endpoint=self.name,
            resource_name=self.behaviour.resource,
        )
        try:
            await channel.unary(
                wire.RegistrationStub.register, request, deadline_seconds=DEADLINE_SECONDS
            )
        except RpcError as error:
            self._note("Register", error=error.message)
            return False
        finally:
            channel.close()
        self._note("Register", error="")
        return True

    async def _misbehave(self, method: str, *, quiet: bool = False, **facts: Any) -> dict[str, Any]:
        """Write a call down, then do what the faults say; returns those of the method."""
        if not quiet:
            self._note(method, **facts)
        await trio.lowlevel.checkpoint()
        path = self.folder / "faults.json"
        faults: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        fault: dict[str, Any] = faults.get(method, {})
        if fault.get("hang"):
            await trio.sleep_forever()
        if fault.get("slow"):
            await trio.sleep(fault["slow"])
        if fault.get("fail"):
            raise RpcError(Code[fault.get("code", "UNKNOWN")], str(fault["fail"]))
        return fault

    def _note(self, method: str, **facts: Any) -> None:
        """Add a line, which is there though the plugin be killed."""
        with (self.folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps({"method": method, **facts}) + "\n")


def _device(name: str, told: str) -> wire.Device:
    health, _, node = told.partition("@")
    device = wire.Device(id=name, health=health)
    if node:
        device.topology = wire.TopologyInfo(nodes=[wire.NumaNode(id=int(node))])
    return device


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a socket from one that was there before: number and time of its making."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _write_whole(path: Path, value: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(path)


async def _main(plugin: LabDevicePlugin, registry: Path | None) -> None:
    async with open_rpc_loop():
        print("running", flush=True)
        await plugin.run(registry)


def main() -> None:
    parser = argparse.ArgumentParser(description="A device plugin for tests.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--plugins", type=Path, required=True)
    parser.add_argument("--registry-socket", type=Path)
    parser.add_argument("--resource", default=RESOURCE)
    parser.add_argument("--pre-start", action="store_true")
    parser.add_argument("--preferred", default="")
    arguments = parser.parse_args()
    behaviour = DeviceBehaviour(
        resource=arguments.resource,
        pre_start=arguments.pre_start,
        preferred=tuple(filter(None, arguments.preferred.split(","))),
    )
    name = f"{arguments.resource.replace('/', '_')}.sock"
    plugin = LabDevicePlugin(arguments.folder, arguments.plugins, behaviour, name)
    trio.run(_main, plugin, arguments.registry_socket)


if __name__ == "__main__":
    main()
