"""What the node has and what pods may ask for, computed in one place for all who need it.

The machine is read once, at the start. Reservations and what device plugins bring may change
while the agent runs: admission, volumes and the Node object read the amounts as they are now.
"""

from collections.abc import Collection

from trio_kubelet.callbacks import Callbacks
from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Quantity
from trio_kubelet.node.allocatable import (
    NodeAmounts,
    Reservations,
    Resources,
    machine_capacity,
    node_amounts,
    overcommitments,
    reservations,
)
from trio_kubelet.node.enforcement import pods_cgroup_config
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.resources import CgroupConfig


class NodeResources:
    """Owner of the amounts. Whoever owns a resource changes it; `on_change` is called then.

    `machine` is what the machine has of each resource.
    """

    def __init__(self, machine: Resources, reservations: Reservations) -> None:
        self.on_change = Callbacks[[]]()
        self._machine = machine
        self._reservations = reservations
        self._devices: dict[str, tuple[Quantity, Quantity]] = {}
        self._amounts = node_amounts(machine, reservations)

    def amounts(self) -> NodeAmounts:
        """Return what there is now."""
        return self._amounts

    def allocatable(self) -> Resources:
        """Return what pods may ask for now."""
        return self._amounts.allocatable

    def reserve(self, reservations: Reservations) -> None:
        """Keep this from pods from now on."""
        self._reservations = reservations
        self._update()

    def set_devices(self, name: str, capacity: Quantity, allocatable: Quantity) -> None:
        """A device plugin has so many devices of an extended resource, so many of them healthy."""
        self._devices[name] = (capacity, allocatable)
        self._update()

    def pods_limits(self, enforced: Collection[str], max_pids: int | None) -> CgroupConfig:
        """Return the values of the cgroup of all pods; the arguments are `pods_cgroup_config`'s."""
        return pods_cgroup_config(self._machine, self._reservations, enforced, max_pids)

    def problem(self) -> str:
        """Return why a node cannot be run like this, in one line; empty if it can."""
        lines = tuple(overcommitments(self._machine, self._reservations))
        return f"invalid Node Allocatable configuration. {' '.join(lines)}" if lines else ""

    def _update(self) -> None:
        own = node_amounts(self._machine, self._reservations)
        devices = {name: capacity for name, (capacity, _) in self._devices.items()}
        healthy = {name: allocatable for name, (_, allocatable) in self._devices.items()}
        self._amounts = NodeAmounts(
            capacity={**own.capacity, **devices}, allocatable={**own.allocatable, **healthy}
        )
        self.on_change.call()


def node_resources(settings: Settings, machine: MachineInfo) -> NodeResources:
    """Return what these settings leave of a machine for pods."""
    configuration = settings.configuration
    capacity = machine_capacity(
        machine,
        max_pods=configuration.max_pods,
        pods_per_core=configuration.pods_per_core,
        storage=configuration.local_storage_capacity_isolation,
    )
    return NodeResources(capacity, reservations(configuration, settings.options))
