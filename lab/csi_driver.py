r"""A CSI driver of ours, for tests.

    python -m lab.csi_driver --folder /tmp/driver \
        --registry-socket /var/lib/kubelet/plugins_registry/driver.sock

It serves the services Identity and Node, and registers with the node's agent, until it is killed.
Calls are written to `calls.jsonl` in its folder. What it does wrong is asked of `faults.json`
there, at each call: {"NodeGetInfo": {"hang": true}}.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import betterproto
import trio
from attrs import define, field, frozen

from trio_kubelet.kernel.mountinfo import is_mounted
from trio_kubelet.rpc import Code, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.methods import Contract
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs.csi import v1 as csi
from trio_kubelet.volumes.mount import MS_BIND, mount, unmount

M = TypeVar("M", bound=betterproto.Message)

NAME = "lab.csi.example.com"
VERSIONS = ("1.12.0",)
STAGES = csi.NodeServiceCapabilityRpcType(csi.NodeServiceCapabilityRpcType.STAGE_UNSTAGE_VOLUME)
"""Volumes are staged for all pods, and keep their data from pod to pod."""
MEASURES = csi.NodeServiceCapabilityRpcType(csi.NodeServiceCapabilityRpcType.GET_VOLUME_STATS)
"""The space of volumes is told."""
EXPANDS = csi.NodeServiceCapabilityRpcType(csi.NodeServiceCapabilityRpcType.EXPAND_VOLUME)
"""The driver takes note of a volume's new size."""
BYTES = csi.VolumeUsageUnit(csi.VolumeUsageUnit.BYTES)
INODES = csi.VolumeUsageUnit(csi.VolumeUsageUnit.INODES)


@frozen(kw_only=True)
class Behaviour:
    """What the driver says of itself."""

    name: str = NAME
    type: str = "CSIPlugin"
    versions: tuple[str, ...] = VERSIONS
    endpoint: str | None = None
    node_id: str = "lab-node"
    max_volumes: int = 0
    topology: Mapping[str, str] = field(factory=dict)
    capabilities: tuple[csi.NodeServiceCapabilityRpcType, ...] = ()
    mounts: bool = False
    """Volumes are mounts, which needs root; otherwise they are folders."""


@define
class CallLog:
    """The calls that came."""

    path: Path

    def write(self, **facts: Any) -> None:
        """Add a line, which is there though the driver be killed."""
        with self.path.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@define
class LabDriver:
    """The services of a driver, and of its registration."""

    contracts: ClassVar[tuple[Contract, ...]] = (csi.IdentityBase, csi.NodeBase)
    folder: Path
    behaviour: Behaviour = field(factory=Behaviour)
    notified: list[registration.RegistrationStatus] = field(factory=list)
    was_notified: trio.Event = field(factory=trio.Event)

    @property
    def log(self) -> CallLog:
        return CallLog(self.folder / "calls.jsonl")

    @property
    def socket(self) -> Path:
        return self.folder / "csi.sock"

    def published(self) -> list[str]:
        """The targets of volumes that were published and not taken away since."""
        return self._not_undone("NodePublishVolume", "NodeUnpublishVolume")

    def staged(self) -> list[str]:
        """The paths of volumes that were staged, and not unstaged since."""
        return self._not_undone("NodeStageVolume", "NodeUnstageVolume")

    def _not_undone(self, does: str, undoes: str) -> list[str]:
        targets: dict[str, None] = {}
        for line in self.log.read():
            if line.get("step") == "done" and line["method"] == does:
                targets[line["target"]] = None
            if line.get("step") == "done" and line["method"] == undoes:
                targets.pop(line["target"], None)
        return list(targets)

    def set_faults(self, **faults: Mapping[str, object]) -> None:
        """Say what goes wrong from now on, by method: `hang`, `fail`, `lose_answer`, `slow`.

        All but `slow`, a number of seconds, are texts or true.
        """
        new = self.folder / "faults.new"
        new.write_text(json.dumps(faults))
        new.replace(self.folder / "faults.json")

    async def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """Introduce the driver to the agent."""
        await self._misbehave("GetInfo")
        said = self.behaviour
        return registration.PluginInfo(
            type=said.type,
            name=said.name,
            endpoint=str(self.socket) if said.endpoint is None else said.endpoint,
            supported_versions=list(said.versions),
        )

    async def notify_registration_status(
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        """Take note of what came of it."""
        await trio.lowlevel.checkpoint()
        self.notified.append(request)
        self.log.write(
            method="NotifyRegistrationStatus",
            registered=request.plugin_registered,
            error=request.error,
        )
        self.was_notified.set()
        self.was_notified = trio.Event()
        return registration.RegistrationStatusResponse()

    async def get_plugin_info(self, _: csi.GetPluginInfoRequest) -> csi.GetPluginInfoResponse:
        """Say the driver's name."""
        await trio.lowlevel.checkpoint()
        return csi.GetPluginInfoResponse(name=self.behaviour.name, vendor_version="1")

    async def probe(self, _: csi.ProbeRequest) -> csi.ProbeResponse:
        """Say that the driver is ready."""
        await trio.lowlevel.checkpoint()
        return csi.ProbeResponse(ready=True)

    async def node_get_info(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Say what the driver calls the node."""
        await self._misbehave("NodeGetInfo")
        said = self.behaviour
        max_volumes = self._fault("NodeGetInfo").get("max_volumes", said.max_volumes)
        answer = csi.NodeGetInfoResponse(
            node_id=said.node_id, max_volumes_per_node=int(str(max_volumes))
        )
        if said.topology:
            answer.accessible_topology = csi.Topology(segments=dict(said.topology))
        return answer

    async def node_get_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        """Say what the driver can do."""
        await self._misbehave("NodeGetCapabilities")
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=csi.NodeServiceCapabilityRpc(type=each))
                for each in self.behaviour.capabilities
            ]
        )

    async def node_stage_volume(
        self, request: csi.NodeStageVolumeRequest
    ) -> csi.NodeStageVolumeResponse:
        """Bind the volume's folder to the staging path, or make a folder there."""
        facts = {
            **_shown(request.volume_capability),
            "volume": request.volume_id,
            "target": request.staging_target_path,
            "context": request.volume_context,
            "publish_context": request.publish_context,
            "secrets": request.secrets,
        }

        def stage() -> None:
            data = self.data(request.volume_id)
            if _is_device(request.volume_capability):
                if self.behaviour.mounts:
                    attach_loop_device(data)
                return
            data.mkdir(parents=True, exist_ok=True)
            self._put(str(data), Path(request.staging_target_path))

        await self._carry_out("NodeStageVolume", facts, stage)
        return csi.NodeStageVolumeResponse()

    async def node_unstage_volume(
        self, request: csi.NodeUnstageVolumeRequest
    ) -> csi.NodeUnstageVolumeResponse:
        """Take the volume away from the staging path."""
        facts: dict[str, Any] = {
            "volume": request.volume_id,
            "target": request.staging_target_path,
        }

        def unstage() -> None:
            facts["was_mounted"] = _take_away(Path(request.staging_target_path))
            if self.behaviour.mounts and loop_devices(self.data(request.volume_id)):
                facts["was_mounted"] = True
                detach_loop_devices(self.data(request.volume_id))

        await self._carry_out("NodeUnstageVolume", facts, unstage)
        return csi.NodeUnstageVolumeResponse()

    async def node_publish_volume(
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        """Mount the staged volume, or a file system in memory, at the target."""
        facts = {
            **_shown(request.volume_capability),
            "volume": request.volume_id,
            "target": request.target_path,
            "staged": request.staging_target_path,
            "context": request.volume_context,
            "publish_context": request.publish_context,
            "secrets": request.secrets,
            "read_only": request.readonly,
        }

        def publish() -> None:
            if _is_device(request.volume_capability):
                target = Path(request.target_path)
                target.touch()
                if self.behaviour.mounts and not is_mounted(target):
                    (device,) = loop_devices(self.data(request.volume_id))
                    mount(device, target, flags=MS_BIND)
                return
            self._put(request.staging_target_path, Path(request.target_path))

        await self._carry_out("NodePublishVolume", facts, publish)
        return csi.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        """Take away what is at the target."""
        facts: dict[str, Any] = {"volume": request.volume_id, "target": request.target_path}

        def unpublish() -> None:
            facts["was_mounted"] = _take_away(Path(request.target_path))

        await self._carry_out("NodeUnpublishVolume", facts, unpublish)
        return csi.NodeUnpublishVolumeResponse()

    async def node_get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        """Say what the file system has that the volume is on; of a device its size."""
        facts = {
            "volume": request.volume_id,
            "target": request.volume_path,
            "staged": request.staging_target_path,
        }
        usage: list[csi.VolumeUsage] = []

        def measure() -> None:
            usage.extend(_usage(Path(request.volume_path)))

        await self._carry_out("NodeGetVolumeStats", facts, measure)
        return csi.NodeGetVolumeStatsResponse(usage=usage)

    async def node_expand_volume(
        self, request: csi.NodeExpandVolumeRequest
    ) -> csi.NodeExpandVolumeResponse:
        """Take note of a volume's size; nothing that it is made of has one."""
        facts = {
            **_shown(request.volume_capability),
            "volume": request.volume_id,
            "target": request.volume_path,
            "staged": request.staging_target_path,
            "size": request.capacity_range.required_bytes,
            "secrets": request.secrets,
        }
        await self._carry_out("NodeExpandVolume", facts, lambda: None)
        return csi.NodeExpandVolumeResponse(capacity_bytes=request.capacity_range.required_bytes)

    def data(self, volume: str) -> Path:
        """The folder, or the file, with the data of a volume that is staged."""
        return self.folder / "volumes" / volume

    def images(self) -> list[Path]:
        """The files with the data of volumes that are devices."""
        return [path for path in self.data("").glob("*") if path.is_file()]

    def _put(self, source: str, target: Path) -> None:
        """Mount a folder at the target, or a file system in memory if there is no source."""
        target.mkdir(exist_ok=True)
        if not self.behaviour.mounts or is_mounted(target):
            return
        if source:
            mount(source, target, flags=MS_BIND)
        else:
            mount("tmpfs", target, "tmpfs", options="size=1m")

    async def _carry_out(
        self, method: str, facts: Mapping[str, Any], work: Callable[[], None]
    ) -> None:
        """Do what a call asks for, with a line in the log before and after it."""
        self.log.write(method=method, step="begun", **facts)
        await self._misbehave(method)
        work()
        self.log.write(method=method, step="done", **facts)
        await self._lose_answer(method)

    async def _lose_answer(self, method: str) -> None:
        if self._fault(method).get("lose_answer"):
            await trio.sleep_forever()

    async def _misbehave(self, method: str) -> None:
        """Do what the faults say before a call is carried out."""
        await trio.lowlevel.checkpoint()
        fault = self._fault(method)
        if fault.get("hang"):
            await trio.sleep_forever()
        if slow := fault.get("slow"):
            await trio.sleep(float(str(slow)))
        if fail := fault.get("fail"):
            code, _, message = str(fail).partition(": ")
            raise RpcError(Code[code], message)

    def _fault(self, method: str) -> Mapping[str, object]:
        try:
            faults = json.loads((self.folder / "faults.json").read_text())
        except FileNotFoundError:
            return {}
        fault: Mapping[str, object] = faults.get(method, {})
        return fault


def _usage(path: Path) -> Sequence[csi.VolumeUsage]:
    if not path.is_dir():
        with path.open("rb") as device:
            size = device.seek(0, os.SEEK_END)
        return (csi.VolumeUsage(total=size, unit=BYTES),)
    found = os.statvfs(path)
    return (
        csi.VolumeUsage(
            total=found.f_blocks * found.f_frsize,
            available=found.f_bavail * found.f_frsize,
            used=(found.f_blocks - found.f_bfree) * found.f_frsize,
            unit=BYTES,
        ),
        csi.VolumeUsage(
            total=found.f_files,
            available=found.f_ffree,
            used=found.f_files - found.f_ffree,
            unit=INODES,
        ),
    )


def _is_device(capability: csi.VolumeCapability) -> bool:
    return bool(betterproto.which_one_of(capability, "access_type")[0] == "block")


def _shown(capability: csi.VolumeCapability) -> dict[str, Any]:
    if betterproto.which_one_of(capability, "access_type")[0] != "mount":
        return {"access_mode": int(capability.access_mode.mode)}
    return {
        "fs_type": capability.mount.fs_type,
        "mount_flags": capability.mount.mount_flags,
        "group": capability.mount.volume_mount_group,
        "access_mode": int(capability.access_mode.mode),
    }


def _take_away(target: Path) -> bool:
    """Take away what is at a target; True if it was a mount still."""
    was_mounted = is_mounted(target)
    if was_mounted:
        unmount(target)
    if target.is_dir():
        target.rmdir()
    else:
        target.unlink(missing_ok=True)
    return was_mounted


def loop_devices(image: Path) -> list[str]:
    """The loop devices that are on a file."""
    find = ["losetup", "--noheadings", "--output", "NAME", "--associated", str(image)]
    return subprocess.run(find, check=True, capture_output=True, text=True).stdout.split()


def attach_loop_device(image: Path) -> None:
    """Have one loop device on a file, which is made if there is none."""
    image.parent.mkdir(parents=True, exist_ok=True)
    if not image.exists():
        image.write_bytes(bytes(1 << 20))
    if not loop_devices(image):
        subprocess.run(["losetup", "--find", str(image)], check=True)


def detach_loop_devices(image: Path) -> None:
    """Have no loop device on a file any more."""
    for device in loop_devices(image):
        subprocess.run(["losetup", "--detach", device], check=True)


async def serve_driver(
    driver: LabDriver,
    registry_socket: Path | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a driver, and at the socket in the registry its registration, until cancelled."""
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, [driver], driver.socket, contracts=driver.contracts))
        if registry_socket is not None:
            await nursery.start(
                partial(
                    serve, [driver], registry_socket, contracts=(registration.RegistrationBase,)
                )
            )
        task_status.started()


async def _run(kind: type[LabDriver], options: argparse.Namespace) -> None:
    driver = kind(
        options.folder,
        Behaviour(
            name=options.name,
            node_id=options.node_id,
            mounts=options.mounts,
            endpoint=options.endpoint,
            capabilities=(MEASURES, EXPANDS, *((STAGES,) if options.stages else ())),
        ),
    )
    driver.folder.mkdir(parents=True, exist_ok=True)
    async with open_rpc_loop():
        await serve_driver(driver, options.registry_socket)


def main(kind: type[LabDriver] = LabDriver) -> int:
    """Run a driver until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where its files are")
    parser.add_argument(
        "--registry-socket", type=Path, help="its socket in plugins_registry, none without"
    )
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--mounts", action="store_true", help="volumes are mounts")
    parser.add_argument("--stages", action="store_true", help="volumes are staged, and keep data")
    parser.add_argument("--endpoint", help="the socket of another driver, which is registered")
    parser.add_argument("--node-id", default="lab-node")
    trio.run(_run, kind, parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
