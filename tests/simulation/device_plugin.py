"""A device plugin of the simulated node: its process, which comes and goes, and its devices.

The agent finds its socket, follows its list and has it allocate devices, all of it as with any
plugin, on a real socket in simulated time. Devices turn unhealthy, or are not listed for a while.
The variable `DEVICES` of a container tells which ones it was given.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from tests.simulation.devices import DEVICES, VARIABLE, DeviceRules
from tests.simulation.plugin_process import PluginProcess
from tests.simulation.shapes import DEVICE
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs import v1beta1 as wire

MOST_TROUBLED = 20
LONGEST_CALL_SECONDS, LONGEST_SLOW_CALL_SECONDS = 0.2, 40.0
LONGEST_PREFERENCE_SECONDS = 25.0
"""The agent waits 30 s for a preference, and rejects the pod then."""


class SimulatedDevicePlugin:
    """The plugin of `DEVICE`. `registry` is the folder for its sockets."""

    def __init__(
        self,
        registry: Path,
        chance: random.Random,
        nursery: trio.Nursery,
        rules: DeviceRules,
    ) -> None:
        self._chance = chance
        self._rules = rules
        self.process = PluginProcess(registry, "device", (wire.DevicePluginBase,), chance, nursery)
        self._followers = 0
        self._unhealthy: frozenset[str] = frozenset()
        self._unlisted: frozenset[str] = frozenset()
        self._changed = trio.Event()
        self._is_slow = self._is_unavailable = self._fails_lists = False

    @property
    def is_in_use(self) -> bool:
        """Whether an agent is told of the devices."""
        return self._followers > 0

    def change(self) -> None:
        """Let other devices be unhealthy, or not there, than before."""
        troubled = self._chance.sample(DEVICES, self._chance.randint(0, MOST_TROUBLED))
        split = self._chance.randint(0, len(troubled))
        self._tell(unhealthy=frozenset(troubled[:split]), unlisted=frozenset(troubled[split:]))

    def start_faults(self) -> None:
        """Let calls be slow, or answered by an error that says to come again, or lists fail."""
        self._is_slow, self._is_unavailable, self._fails_lists = self._chance.choice(
            ((True, False, False), (False, True, False), (True, True, False), (False, False, True))
        )

    def stop_faults(self) -> None:
        """Let all calls go well."""
        self._is_slow = self._is_unavailable = self._fails_lists = False

    def mend(self) -> None:
        """Have all devices there, and healthy."""
        self._tell(unhealthy=frozenset(), unlisted=frozenset())

    def _tell(self, *, unhealthy: frozenset[str], unlisted: frozenset[str]) -> None:
        self._unhealthy, self._unlisted = unhealthy, unlisted
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # The calls

    async def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """Introduce the plugin; it is served on the same socket."""
        await trio.lowlevel.checkpoint()
        return registration.PluginInfo(
            type="DevicePlugin", name=DEVICE, supported_versions=["v1beta1"]
        )

    async def notify_registration_status(
        self, _: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        """Take no note of what came of it."""
        await trio.lowlevel.checkpoint()
        return registration.RegistrationStatusResponse()

    async def get_device_plugin_options(self, _: wire.Empty) -> wire.DevicePluginOptions:
        """Say that the plugin has a say in which devices are taken."""
        await trio.lowlevel.checkpoint()
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    async def list_and_watch(self, _: wire.Empty) -> AsyncIterator[wire.ListAndWatchResponse]:
        """List the devices whenever they have changed. Raises RpcError now and then."""
        self._followers += 1
        try:
            while True:
                changed = self._changed
                if self._fails_lists and self._chance.random() < 0.5:
                    raise RpcError(Code.INTERNAL, "the devices cannot be listed")
                yield wire.ListAndWatchResponse(
                    devices=[
                        wire.Device(
                            id=each, health="Unhealthy" if each in self._unhealthy else "Healthy"
                        )
                        for each in DEVICES
                        if each not in self._unlisted
                    ]
                )
                await changed.wait()
        finally:
            self._followers -= 1

    async def get_preferred_allocation(
        self, request: wire.PreferredAllocationRequest
    ) -> wire.PreferredAllocationResponse:
        """Prefer the last of the devices that the agent offers: by itself it takes the first."""
        await self._take_time(LONGEST_PREFERENCE_SECONDS)
        (asked,) = request.container_requests
        ids = sorted(asked.available_device_i_ds)[-asked.allocation_size :]
        preferred = wire.ContainerPreferredAllocationResponse(device_i_ds=ids)
        return wire.PreferredAllocationResponse(container_responses=[preferred])

    async def allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        """Give devices to a container. Raises RpcError now and then."""
        await self._take_time()
        if self._is_unavailable and self._chance.random() < 0.5:
            raise RpcError(Code.UNAVAILABLE, "come again later")
        (asked,) = request.container_requests
        ids = list(asked.devices_ids)
        self._rules.on_allocate(ids)
        given = wire.ContainerAllocateResponse(envs={VARIABLE: ",".join(ids)})
        return wire.AllocateResponse(container_responses=[given])

    async def _take_time(self, longest_slow: float = LONGEST_SLOW_CALL_SECONDS) -> None:
        longest = LONGEST_CALL_SECONDS
        if self._is_slow and self._chance.random() < 0.5:
            longest = longest_slow
        await trio.sleep(self._chance.uniform(0, longest))
