"""A CSI driver of the simulated node: its process, which comes and goes, and its mounts.

The agent finds its socket, registers it and calls it as it does with any driver, on a real socket;
all waiting is in simulated time. What it has staged and published is a table of mounts, which the
agent reads in the place of the kernel's. The table outlives the process, not the machine.

A version of it that is installed anew may stage volumes, or not; it undoes what another one did.

In a round of faults calls fail before or after their effect, hang, lose their answers, or take
effect although the caller has gone. Of calls for one volume it carries out one at a time.
"""

import os
import random
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import trio

from tests.simulation.mounts import Mount, MountTable
from tests.simulation.plugin_process import PluginProcess
from tests.simulation.shapes import CSI_DRIVER
from tests.simulation.volumes import VolumeRules
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs.csi import v1 as csi

# That of the system, before anything is patched: what others make fits on a full disk.
_mkdir = os.mkdir

LONGEST_CALL_SECONDS = 0.3
LONGEST_SLOW_CALL_SECONDS = 30.0


class CallTrouble(StrEnum):
    """What goes wrong with a call."""

    NONE = "none"
    FAILS = "fails"
    FAILS_AFTER = "fails after its effect"
    HANGS = "hangs"
    LOSES_ANSWER = "loses its answer"
    OUTLIVES_CALLER = "takes effect late, though the caller has gone"


WAYS = (
    (CallTrouble.FAILS,),
    (CallTrouble.FAILS_AFTER, CallTrouble.FAILS),
    (CallTrouble.HANGS,),
    (CallTrouble.LOSES_ANSWER,),
    (CallTrouble.OUTLIVES_CALLER,),
    tuple(each for each in CallTrouble if each is not CallTrouble.NONE),
)
"""Each spell of trouble is of one of these kinds."""


class SimulatedDriver:
    """The driver `CSI_DRIVER`. `registry` is the folder for its sockets."""

    def __init__(
        self,
        registry: Path,
        table: MountTable,
        chance: random.Random,
        nursery: trio.Nursery,
        rules: VolumeRules,
    ) -> None:
        self._table = table
        self._chance = chance
        self._rules = rules
        self.process = PluginProcess(registry, "csi", (csi.NodeBase,), chance, nursery)
        self._devices: dict[str, int] = {}
        """A number for each volume that was ever mounted."""
        self._busy: set[str] = set()
        self._stages = True
        self._troubles: tuple[CallTrouble, ...] = ()
        self._calm = trio.Event()
        self._effects_left = 0
        self._then: Callable[[], None] = lambda: None
        self._boot = 0

    @property
    def is_in_use(self) -> bool:
        """Whether its process runs."""
        return self.process.is_running

    def lose_power(self) -> None:
        """End with the machine: nothing is mounted any more, and no late call mounts it."""
        self._boot += 1
        self._table.mounts.clear()
        self.process.lose_power()

    def start_faults(self) -> None:
        """Let calls go wrong in one of several ways."""
        self._troubles = self._chance.choice(WAYS)

    def stop_faults(self) -> None:
        """Let nothing go wrong from now on; calls that hang go on."""
        self._troubles, self._effects_left = (), 0
        calm, self._calm = self._calm, trio.Event()
        calm.set()

    def change_version(self) -> None:
        """Be another version from the next start on, which does what this one left out."""
        self._stages = not self._stages

    def at_effect(self, number: int, then: Callable[[], None]) -> None:
        """Do something right after the effect of the call of that number, counted from now."""
        self._effects_left, self._then = number, then

    # The calls

    async def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """Introduce the driver; it is served on the same socket."""
        await trio.sleep(self._chance.uniform(0, LONGEST_CALL_SECONDS))
        return registration.PluginInfo(
            type="CSIPlugin", name=CSI_DRIVER, supported_versions=["1.12.0"]
        )

    async def notify_registration_status(
        self, _: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        """Take no note of what came of it."""
        await trio.lowlevel.checkpoint()
        return registration.RegistrationStatusResponse()

    async def node_get_info(self, _: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        """Say what the driver calls the node."""
        await self._carry_out("", lambda: None)
        return csi.NodeGetInfoResponse(node_id="simulated")

    async def node_get_capabilities(
        self, _: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        """Say whether volumes are to be staged."""
        await trio.lowlevel.checkpoint()
        if not self._stages:
            return csi.NodeGetCapabilitiesResponse()
        kind = csi.NodeServiceCapabilityRpcType.STAGE_UNSTAGE_VOLUME
        rpc = csi.NodeServiceCapabilityRpc(type=csi.NodeServiceCapabilityRpcType(kind))
        return csi.NodeGetCapabilitiesResponse(capabilities=[csi.NodeServiceCapability(rpc=rpc)])

    async def node_stage_volume(
        self, request: csi.NodeStageVolumeRequest
    ) -> csi.NodeStageVolumeResponse:
        """Mount a volume for all pods."""
        volume, path = request.volume_id, request.staging_target_path

        def stage() -> None:
            self._rules.on_stage(volume, path)
            self._table.mounts[path] = Mount(volume, self._device(volume))

        await self._carry_out(volume, stage)
        self._rules.on_answer(path)
        return csi.NodeStageVolumeResponse()

    async def node_unstage_volume(
        self, request: csi.NodeUnstageVolumeRequest
    ) -> csi.NodeUnstageVolumeResponse:
        """Unmount it; one that is not there is fine."""
        volume, path = request.volume_id, request.staging_target_path

        def unstage() -> None:
            self._rules.on_unstage(volume, path)
            self._table.mounts.pop(path, None)

        await self._carry_out(volume, unstage)
        return csi.NodeUnstageVolumeResponse()

    async def node_publish_volume(
        self, request: csi.NodePublishVolumeRequest
    ) -> csi.NodePublishVolumeResponse:
        """Mount a volume for a pod; the driver makes the folder itself."""
        volume, target = request.volume_id, request.target_path

        def publish() -> None:
            self._rules.on_publish(volume, target, request.staging_target_path)
            if not Path(target).exists():
                _mkdir(target)
            self._table.mounts[target] = Mount(volume, self._device(volume))

        await self._carry_out(volume, publish)
        self._rules.on_answer(target)
        return csi.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: csi.NodeUnpublishVolumeRequest
    ) -> csi.NodeUnpublishVolumeResponse:
        """Unmount it and remove the folder; one that is not there is fine."""
        volume, target = request.volume_id, request.target_path

        def unpublish() -> None:
            self._rules.on_unpublish(volume, target)
            self._table.mounts.pop(target, None)
            if Path(target).exists():
                Path(target).rmdir()

        await self._carry_out(volume, unpublish)
        return csi.NodeUnpublishVolumeResponse()

    def _device(self, volume: str) -> int:
        return self._devices.setdefault(volume, len(self._devices) + 50)

    async def _carry_out(self, volume: str, effect: Callable[[], None]) -> None:
        """Do what a call asks for, with what goes wrong. Raises RpcError."""
        if volume in self._busy:
            words = f"an operation with the volume {volume} is under way"
            raise RpcError(Code.ABORTED, words)
        trouble = CallTrouble.NONE
        if self._troubles and self._chance.random() < 0.6:
            trouble = self._chance.choice(self._troubles)
        if volume:
            self._busy.add(volume)
        try:
            await self._take_effect(trouble, effect)
        finally:
            self._busy.discard(volume)
        await trio.lowlevel.checkpoint()  # A caller that has gone meanwhile gets no answer.
        if trouble is CallTrouble.LOSES_ANSWER:
            await self._calm.wait()
        if trouble is CallTrouble.FAILS_AFTER:
            raise RpcError(Code.INTERNAL, "something went wrong in the end")

    async def _take_effect(self, trouble: CallTrouble, effect: Callable[[], None]) -> None:
        if trouble is CallTrouble.HANGS:
            await self._calm.wait()
        boot = self._boot
        is_late = trouble is CallTrouble.OUTLIVES_CALLER
        longest = LONGEST_SLOW_CALL_SECONDS if is_late else LONGEST_CALL_SECONDS
        with trio.CancelScope(shield=is_late):
            await trio.sleep(self._chance.uniform(0, longest))
            if trouble is CallTrouble.FAILS:
                raise RpcError(Code.INTERNAL, "something went wrong")
            if boot == self._boot:
                effect()
        if self._effects_left > 0:
            self._effects_left -= 1
            if self._effects_left == 0:
                self._then()
