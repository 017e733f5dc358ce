r"""A CSI driver of ours that makes, attaches and grows volumes, too, for controllers of others.

    python -m lab.csi_controller --folder /tmp/driver --mounts --stages

To the driver of `csi_driver.py`, whose options and files it has, it adds the service Controller. It
refuses what CSI says is to be refused: calls without their fields, and for volumes that it has not
made. What it has made is in `made` in its folder, a file each.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import betterproto
import trio
from attrs import asdict, define, evolve, frozen

from lab.csi_driver import LabDriver, main
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.methods import Contract
from trio_kubelet.rpc.stubs.csi import v1 as csi

USUAL_BYTES = 1 << 30
DEVICE = "lab.csi.example.com/device"
"""In what attaching a volume tells."""

_Controller = csi.ControllerServiceCapabilityRpcType
CAPABILITIES = (
    _Controller(_Controller.CREATE_DELETE_VOLUME),
    _Controller(_Controller.PUBLISH_UNPUBLISH_VOLUME),
    _Controller(_Controller.EXPAND_VOLUME),
)

_Service, _Expansion = csi.PluginCapabilityServiceType, csi.PluginCapabilityVolumeExpansionType
MAKES_VOLUMES = _Service(_Service.CONTROLLER_SERVICE)
ONLINE = _Expansion(_Expansion.ONLINE)


@frozen
class MadeVolume:
    """A volume that was made. `node` is where it is attached, empty if it is not."""

    id: str
    name: str
    capacity_bytes: int
    node: str = ""
    read_only: bool = False


@define
class ProvisioningDriver(LabDriver):
    """A driver with the service Controller."""

    contracts: ClassVar[tuple[Contract, ...]] = (*LabDriver.contracts, csi.ControllerBase)

    async def get_plugin_capabilities(
        self, _: csi.GetPluginCapabilitiesRequest
    ) -> csi.GetPluginCapabilitiesResponse:
        """Say that volumes are made here, and grow while they are used."""
        await trio.lowlevel.checkpoint()
        return csi.GetPluginCapabilitiesResponse(
            capabilities=[
                csi.PluginCapability(service=csi.PluginCapabilityService(MAKES_VOLUMES)),
                csi.PluginCapability(volume_expansion=csi.PluginCapabilityVolumeExpansion(ONLINE)),
            ]
        )

    async def controller_get_capabilities(
        self, _: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        """Say what the service can do."""
        await trio.lowlevel.checkpoint()
        return csi.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi.ControllerServiceCapability(rpc=csi.ControllerServiceCapabilityRpc(type=each))
                for each in CAPABILITIES
            ]
        )

    async def create_volume(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        """Make a volume, or find the one of that name."""
        _must_have(name=request.name, volume_capabilities=request.volume_capabilities)
        for each in request.volume_capabilities:
            _must_have(access_type=_access_type(each))
        wanted = request.capacity_range
        made = self._find(_id(request.name)) or MadeVolume(
            _id(request.name),
            request.name,
            wanted.required_bytes or wanted.limit_bytes or USUAL_BYTES,
        )
        if not _is_within(made.capacity_bytes, wanted):
            raise RpcError(Code.ALREADY_EXISTS, f"{made.id} has {made.capacity_bytes} bytes")
        facts = {"volume": made.id, "name": made.name, "size": made.capacity_bytes}
        await self._carry_out("CreateVolume", facts, lambda: self._keep(made))
        volume = csi.Volume(capacity_bytes=made.capacity_bytes, volume_id=made.id)
        return csi.CreateVolumeResponse(volume=volume)

    async def delete_volume(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        """Remove a volume with its data; one that is not there is fine."""
        _must_have(volume_id=request.volume_id)
        found = self._find(request.volume_id)
        if found is not None and found.node:
            raise RpcError(Code.FAILED_PRECONDITION, f"{found.id} is attached to {found.node}")

        def delete() -> None:
            if found is None:
                return
            data = self.data(found.id)
            if data.is_dir():
                shutil.rmtree(data)
            else:
                data.unlink(missing_ok=True)
            self._file(found.id).unlink()

        await self._carry_out("DeleteVolume", {"volume": request.volume_id}, delete)
        return csi.DeleteVolumeResponse()

    async def controller_publish_volume(
        self, request: csi.ControllerPublishVolumeRequest
    ) -> csi.ControllerPublishVolumeResponse:
        """Attach a volume to the node, the only one that there is."""
        _must_have(
            volume_id=request.volume_id,
            node_id=request.node_id,
            volume_capability=_access_type(request.volume_capability),
        )
        made = self._made(request.volume_id)
        if request.node_id != self.behaviour.node_id:
            raise RpcError(Code.NOT_FOUND, f"there is no node {request.node_id}")
        if made.node and made.read_only != request.readonly:
            raise RpcError(Code.ALREADY_EXISTS, f"{made.id} is attached with another mode")
        attached = evolve(made, node=request.node_id, read_only=request.readonly)
        facts = {"volume": made.id, "node": request.node_id}
        await self._carry_out("ControllerPublishVolume", facts, lambda: self._keep(attached))
        return csi.ControllerPublishVolumeResponse(publish_context={DEVICE: made.id})

    async def controller_unpublish_volume(
        self, request: csi.ControllerUnpublishVolumeRequest
    ) -> csi.ControllerUnpublishVolumeResponse:
        """Detach a volume; one that is not attached, or not there, is fine."""
        _must_have(volume_id=request.volume_id)
        found = self._find(request.volume_id)

        def detach() -> None:
            if found is not None:
                self._keep(evolve(found, node="", read_only=False))

        facts = {"volume": request.volume_id, "node": request.node_id}
        await self._carry_out("ControllerUnpublishVolume", facts, detach)
        return csi.ControllerUnpublishVolumeResponse()

    async def validate_volume_capabilities(
        self, request: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        """Confirm all uses: a volume is a folder, or a file, as is wanted of it."""
        await trio.lowlevel.checkpoint()
        _must_have(volume_id=request.volume_id, volume_capabilities=request.volume_capabilities)
        self._made(request.volume_id)
        return csi.ValidateVolumeCapabilitiesResponse(
            confirmed=csi.ValidateVolumeCapabilitiesResponseConfirmed(
                volume_capabilities=request.volume_capabilities
            )
        )

    async def controller_expand_volume(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        """Have a volume grow; the node has its part in it."""
        wanted = request.capacity_range
        _must_have(
            volume_id=request.volume_id, capacity_range=wanted.required_bytes or wanted.limit_bytes
        )
        made = self._made(request.volume_id)
        grown = evolve(made, capacity_bytes=max(made.capacity_bytes, wanted.required_bytes))
        facts = {"volume": made.id, "size": grown.capacity_bytes}
        await self._carry_out("ControllerExpandVolume", facts, lambda: self._keep(grown))
        return csi.ControllerExpandVolumeResponse(
            capacity_bytes=grown.capacity_bytes, node_expansion_required=True
        )

    async def node_stage_volume(
        self, request: csi.NodeStageVolumeRequest
    ) -> csi.NodeStageVolumeResponse:
        """Stage a volume that was made."""
        _must_have(
            volume_id=request.volume_id,
            staging_target_path=request.staging_target_path,
            volume_capability=_access_type(request.volume_capability),
        )
        self._made(request.volume_id)
        return await super().node_stage_volume(request)

    async def node_unstage_volume(
        self, request: csi.NodeUnstageVolumeRequest
    ) -> csi.NodeUnstageVolumeResponse:
        """Undo the stage."""
        _must_have(volume_id=request.volume_id, staging_target_path=request.staging_target_path)
        return await super().node_unstage_volume(request)

    async def node_publish_volume(
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        """Publish a volume that was made."""
        _must_have(
            volume_id=request.volume_id,
            target_path=request.target_path,
            volume_capability=_access_type(request.volume_capability),
        )
        self._made(request.volume_id)
        return await super().node_publish_volume(request)

    async def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        """Undo the publication."""
        _must_have(volume_id=request.volume_id, target_path=request.target_path)
        return await super().node_unpublish_volume(request)

    async def node_get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        """Tell the space of a volume that is there."""
        _must_have(volume_id=request.volume_id, volume_path=request.volume_path)
        self._made(request.volume_id)
        if not os.path.lexists(request.volume_path):  # noqa: ASYNC240 - tests wait for it alone
            raise RpcError(Code.NOT_FOUND, f"there is nothing at {request.volume_path}")
        return await super().node_get_volume_stats(request)

    async def node_expand_volume(
        self, request: csi.NodeExpandVolumeRequest
    ) -> csi.NodeExpandVolumeResponse:
        """Take note of the size of a volume that was made."""
        _must_have(volume_id=request.volume_id, volume_path=request.volume_path)
        self._made(request.volume_id)
        return await super().node_expand_volume(request)

    def _made(self, volume: str) -> MadeVolume:
        """Return a volume that was made. Raises RpcError."""
        found = self._find(volume)
        if found is None:
            raise RpcError(Code.NOT_FOUND, f"there is no volume {volume}")
        return found

    def _find(self, volume: str) -> MadeVolume | None:
        try:
            return MadeVolume(**json.loads(self._file(volume).read_text()))
        except FileNotFoundError:
            return None

    def _keep(self, volume: MadeVolume) -> None:
        self._file(volume.id).parent.mkdir(exist_ok=True)
        self._file(volume.id).write_text(json.dumps(asdict(volume)))

    def _file(self, volume: str) -> Path:
        return self.folder / "made" / volume


def _id(name: str) -> str:
    return f"vol-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _is_within(size: int, wanted: csi.CapacityRange) -> bool:
    return wanted.required_bytes <= size <= (wanted.limit_bytes or size)


def _access_type(capability: csi.VolumeCapability) -> str:
    """`mount` or `block`; empty where it is missing."""
    name: str = betterproto.which_one_of(capability, "access_type")[0]
    return name


def _must_have(**fields: str | int | Iterable[object]) -> None:
    """Refuse a call that lacks any of these."""
    for name, value in fields.items():
        if not value:
            raise RpcError(Code.INVALID_ARGUMENT, f"{name} is missing")


if __name__ == "__main__":
    sys.exit(main(ProvisioningDriver))
