"""The plugins of the node: a CSI driver that comes and goes, with what the cluster does for it."""

import random
from collections.abc import Callable, Iterator

import trio

from tests.simulation.claims import AttachController
from tests.simulation.csi_driver import MountTable, SimulatedDriver
from tests.simulation.invariants import Invariants
from tests.simulation.node import Node
from tests.simulation.volumes import VolumeRules
from trio_kubelet.agent.node_parts import PLUGINS_REGISTRY

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
        self._rules = VolumeRules(node, invariants.record, mounts, invariants.violated)
        registry = node.pod_folders.parent / PLUGINS_REGISTRY
        self._driver = SimulatedDriver(
            registry, mounts, random.Random(seed + 1), nursery, self._rules
        )
        self._attacher = AttachController(node.api, random.Random(seed + 2), self._rules)
        self._nursery = nursery
        node.runtime.events.add_observer(self._rules.on_event)

    def begin(self) -> None:
        """Create claims and volumes, and have someone attach them."""
        self._attacher.create_all()
        self._nursery.start_soon(self._attacher.run)

    def begin_round(self) -> None:
        """Install what is not there yet: in the first round some time after the node."""
        if not self._driver.process.is_running:
            self._start_soon(self._driver.process.start_later, self._driver)

    def start_faults(self) -> None:
        """Let calls of the driver go wrong."""
        self._driver.start_faults()

    def stop_faults(self) -> None:
        """Let all calls go well."""
        self._driver.stop_faults()

    def end_agent_in_a_call(self) -> None:
        """End the agent when the driver has done something, before it can say so."""
        self._driver.at_effect(self._chance.randint(1, MOST_EFFECTS), self._end_agent)

    def reinstall(self) -> None:
        """Take the driver away, and bring it back later."""
        if self._driver.process.is_running:
            self._start_soon(self._restart_driver)

    def lose_power(self) -> None:
        """Lose all mounts, and the driver with the machine."""
        self._driver.lose_power()

    def boot(self) -> None:
        """Start the driver some time after the machine."""
        self._start_soon(self._restart_driver)

    def leftovers(self) -> Iterator[str]:
        """What is left of volumes that no pod needs."""
        return self._rules.leftovers()

    async def _restart_driver(self) -> None:
        await self._driver.process.stop()
        await self._driver.process.start_later(self._driver)
