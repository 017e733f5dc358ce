"""A driver of resource claims on the simulated node: its process, which comes and goes.

The agent finds its socket, registers it and calls it as it does with any driver, on a real socket;
all waiting is in simulated time. What is prepared outlives the process, not the machine. In a spell
of trouble calls go wrong as those of the CSI driver do.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from tests.simulation.csi_driver import WAYS, CallTrouble
from tests.simulation.plugin_process import PluginProcess
from tests.simulation.prepared_claims import ClaimRules, device_of
from tests.simulation.shapes import DRA_DRIVER
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs.k8s.io.kubelet.pkg.apis.dra import v1 as wire

LONGEST_CALL_SECONDS, LONGEST_SLOW_CALL_SECONDS = 0.3, 30.0
NEVER_LATE = tuple(way for way in WAYS if CallTrouble.OUTLIVES_CALLER not in way)
"""A driver that goes on when its caller has gone may undo what is asked for next."""


class SimulatedDRADriver:
    """The driver `DRA_DRIVER`. `registry` is the folder for its sockets."""

    def __init__(
        self, registry: Path, chance: random.Random, nursery: trio.Nursery, rules: ClaimRules
    ) -> None:
        self._chance = chance
        self._rules = rules
        self.process = PluginProcess(registry, "dra", (wire.DraPluginBase,), chance, nursery)
        self._troubles: Sequence[CallTrouble] = ()
        self._calm = trio.Event()

    @property
    def is_in_use(self) -> bool:
        """Whether its process runs."""
        return self.process.is_running

    def lose_power(self) -> None:
        """End the process with the machine, and lose what it has prepared."""
        self._rules.lose_power()
        self.process.lose_power()

    def start_faults(self) -> None:
        """Let calls go wrong from now on, in one of the ways."""
        self._troubles = self._chance.choice(NEVER_LATE)

    def stop_faults(self) -> None:
        """Let nothing go wrong from now on; calls that hang go on."""
        self._troubles = ()
        calm, self._calm = self._calm, trio.Event()
        calm.set()

    # The calls

    async def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """Introduce the driver; it is served on the same socket."""
        await trio.lowlevel.checkpoint()
        return registration.PluginInfo(
            type="DRAPlugin", name=DRA_DRIVER, supported_versions=["v1.DRAPlugin"]
        )

    async def notify_registration_status(
        self, _: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        """Take no note of what came of it."""
        await trio.lowlevel.checkpoint()
        return registration.RegistrationStatusResponse()

    async def node_prepare_resources(
        self, request: wire.NodePrepareResourcesRequest
    ) -> wire.NodePrepareResourcesResponse:
        """Prepare claims, each with a device of its own."""
        await self._carry_out("prepared", request.claims, self._rules.on_prepare)
        answer = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            self._rules.on_answer(claim.uid)
            device = wire.Device(
                pool_name="pool", device_name=claim.name, cdi_device_ids=[device_of(claim.uid)]
            )
            answer.claims[claim.uid] = wire.NodePrepareResourceResponse(devices=[device])
        return answer

    async def node_unprepare_resources(
        self, request: wire.NodeUnprepareResourcesRequest
    ) -> wire.NodeUnprepareResourcesResponse:
        """Undo it."""
        await self._carry_out("unprepared", request.claims, self._rules.on_unprepare)
        answer = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid] = wire.NodeUnprepareResourceResponse()
        return answer

    async def _carry_out(
        self, what: str, claims: Sequence[wire.Claim], effect: Callable[[str], None]
    ) -> None:
        """Do what a call asks for, with what goes wrong. Raises RpcError."""
        uids = [each.uid for each in claims]
        trouble = CallTrouble.NONE
        if self._troubles and self._chance.random() < 0.6:
            trouble = self._chance.choice(self._troubles)
        self._rules.on_call(what, uids)
        try:
            if trouble is CallTrouble.HANGS:
                await self._calm.wait()
            await trio.sleep(self._chance.uniform(0, LONGEST_CALL_SECONDS))
            if trouble is CallTrouble.FAILS:
                raise RpcError(Code.INTERNAL, "something went wrong")
            for uid in uids:
                effect(uid)
            await trio.lowlevel.checkpoint()  # A caller that has gone meanwhile gets no answer.
            if trouble is CallTrouble.LOSES_ANSWER:
                await self._calm.wait()
            if trouble is CallTrouble.FAILS_AFTER:
                raise RpcError(Code.INTERNAL, "something went wrong in the end")
        finally:
            self._rules.on_call_ended(uids)
