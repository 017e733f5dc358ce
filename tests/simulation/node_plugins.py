"""The plugins of the node, a CSI driver, a device plugin and a DRA driver, which come and go.

What the cluster does for the drivers goes with them.
"""

import random
from collections.abc import Callable, Iterator

import trio

from tests.simulation.claims import AttachController
from tests.simulation.csi_driver import SimulatedDriver
from tests.simulation.device_plugin import SimulatedDevicePlugin
from tests.simulation.devices import DeviceRules
from tests.simulation.dra_driver import SimulatedDRADriver
from tests.simulation.invariants import Invariants
from tests.simulation.mounts import MountTable
from tests.simulation.node import Node
from tests.simulation.prepared_claims import ClaimRules
from tests.simulation.resource_claims import ClaimController
from tests.simulation.volumes import VolumeRules
from trio_kubelet.agent.node_parts import PLUGINS_REGISTRY

Service = SimulatedDriver | SimulatedDevicePlugin | SimulatedDRADriver
MOST_EFFECTS = 6
"""Of the driver, until the one after which the agent ends."""


class NodePlugins:
    """What happens to plugins, a method for each kind of trouble.

    `start_soon` runs what takes time, `end_agent` ends the agent.
    """

    def __init__(
        self,
        seed: int,
        node: Node,
        mounts: MountTable,
        invariants: Invariants,
        nursery: trio.Nursery,
        start_soon: Callable[..., None],
        end_agent: Callable[[], None],
    ) -> None:
        self._chance = random.Random(seed)
        self._start_soon = start_soon
        self._end_agent = end_agent
        self._volumes = VolumeRules(node, invariants.record, mounts, invariants.violated)
        registry = node.pod_folders.parent / PLUGINS_REGISTRY
        self._driver = SimulatedDriver(
            registry, mounts, random.Random(seed + 1), nursery, self._volumes
        )
        self._driver_chance = random.Random(seed + 7)
        self._attacher = AttachController(node.api, random.Random(seed + 2), self._volumes)
        self._nursery = nursery
        node.runtime.events.add_observer(self._volumes.on_event)
        self._devices = DeviceRules(node, invariants.record, invariants.violated)
        self._plugin = SimulatedDevicePlugin(
            registry, random.Random(seed + 3), nursery, self._devices
        )
        node.runtime.events.add_observer(self._devices.on_event)
        node.api.storage.observers.append(self._devices.on_write)
        self._claims = ClaimRules(node, invariants.record, invariants.violated)
        self._dra_chance = random.Random(seed + 4)
        self._dra_driver = SimulatedDRADriver(
            registry, random.Random(seed + 5), nursery, self._claims
        )
        self._claim_controller = ClaimController(node.api, random.Random(seed + 6))
        node.runtime.events.add_observer(self._claims.on_event)
        self._services = (self._driver, self._plugin, self._dra_driver)

    def begin(self) -> None:
        """Create claims and volumes, and have someone attach them."""
        self._attacher.create_all()
        self._nursery.start_soon(self._attacher.run)
        self._claim_controller.create_all()
        self._nursery.start_soon(self._claim_controller.run)

    def begin_round(self) -> None:
        """Install what is not there yet: in the first round some time after the node."""
        for service in self._services:
            if not service.process.is_running:
                self._start_soon(service.process.start_later, service)

    def start_faults(self) -> None:
        """Let calls go wrong, of the driver more often."""
        self._chance.choice((self._driver, self._driver, self._plugin)).start_faults()
        self._dra_driver.start_faults()

    def stop_faults(self) -> None:
        """Let all calls go well."""
        for service in self._services:
            service.stop_faults()

    def change_devices(self) -> None:
        """Let some devices be unhealthy, or not there."""
        self._plugin.change()

    def end_round(self) -> None:
        """Let all go well, with all devices."""
        self.stop_faults()
        self._plugin.mend()

    def end_agent_in_a_call(self) -> None:
        """End the agent when the driver has done something, before it can say so."""
        self._driver.at_effect(self._chance.randint(1, MOST_EFFECTS), self._end_agent)

    def reinstall(self) -> None:
        """Take a plugin away, and bring it back before the node gives it up."""
        service = self._chance.choice((self._driver, self._plugin))
        if service.is_in_use:
            self._start_soon(self._restart, service)
        if (drawn := self._dra_chance.random()) < 0.4 and self._dra_driver.is_in_use:
            is_killed = drawn < 0.2
            self._start_soon(self._kill_driver if is_killed else self._restart, self._dra_driver)

    def lose_power(self) -> None:
        """Lose all mounts, and the plugins with the machine."""
        self._driver.lose_power()
        self._plugin.process.lose_power()
        self._dra_driver.lose_power()

    def boot(self) -> None:
        """Start the plugins some time after the machine."""
        for service in self._services:
            self._start_soon(self._restart, service)

    def unsettled(self) -> Iterator[str]:
        """What is left that no pod needs, and where the Node lacks devices."""
        yield from self._volumes.leftovers()
        yield from self._devices.wrong_amounts()
        yield from self._claims.leftovers()

    async def _kill_driver(self, driver: SimulatedDRADriver) -> None:
        await driver.process.kill()
        await driver.process.start_later(driver)

    async def _restart(self, service: Service) -> None:
        await service.process.stop()
        if service is self._driver:
            if self._driver_chance.random() < 0.4:
                self._driver.change_version()
            if self._driver_chance.random() < 0.4:
                self._volumes.damage_record(self._driver_chance)
        await service.process.start_later(service)
