"""The amounts that the node has and that pods may ask for, computed in one place for all.

The machine is read once, at the start; device plugins add what they offer, and what evictions keep
available may change with the settings. Nobody keeps a copy of the amounts: admission, volumes, the
configs of containers and the Node object ask here.
"""

from collections.abc import Mapping

from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.node.allocatable import (
    CPU,
    MEMORY,
    NodeAmounts,
    Reservations,
    Resources,
    hugepage_names,
    machine_capacity,
    node_amounts,
    overcommitments,
    reservations,
    reserved,
    reserved_cpus_problem,
)
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.resources import pod_limits


class NodeResources:
    """Owner of the amounts. `machine` is what the machine has of each resource.

    `reserved_cpus` is the list of CPUs that the system keeps (reservedSystemCPUs).
    """

    def __init__(
        self, machine: Resources, reservations: Reservations, reserved_cpus: str = ""
    ) -> None:
        self.machine = machine
        self.reservations = reservations
        self._reserved_cpus = reserved_cpus
        self._devices = NodeAmounts()
        self._amounts = node_amounts(machine, reservations)

    def amounts(self) -> NodeAmounts:
        """Return what the node has, and what of it pods may ask for."""
        return self._amounts

    def set_devices(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        """Take what device plugins offer in all, by resource, and what of it pods may have."""
        self._devices = NodeAmounts(capacity=_counted(capacity), allocatable=_counted(allocatable))
        self._add_up()

    def set_reservations(self, reservations: Reservations) -> None:
        """Keep other amounts from pods."""
        self.reservations = reservations
        self._add_up()

    def _add_up(self) -> None:
        own, devices = node_amounts(self.machine, self.reservations), self._devices
        self._amounts = NodeAmounts(
            capacity={**devices.capacity, **own.capacity},
            allocatable={**devices.allocatable, **own.allocatable},
        )

    def allocatable(self) -> Resources:
        """Return what pods may ask for in all."""
        return self._amounts.allocatable

    def reserved_cpu_milli(self) -> int:
        """Return the millicores that the system and Kubernetes' own processes keep."""
        return reserved(self.machine, self.reservations).get(CPU, Quantity(0)).milli_value

    def reserved_memory_bytes(self) -> Mapping[str, int]:
        """Return the bytes of memory and of each size of huge pages that are kept from pods."""
        kept = reserved(self.machine, self.reservations)
        names = (MEMORY, *hugepage_names(self.machine))
        return {name: kept[name].value for name in names if name in kept}

    def memory_for(self, pod: Pod) -> int:
        """Return the bytes that a pod may use: its limit, or what there is for all pods."""
        return (pod_limits(pod).get(MEMORY) or self.allocatable()[MEMORY]).value

    def problem(self) -> str:
        """Return why a node cannot be run like this, in one line; empty if it can."""
        if wrong := reserved_cpus_problem(self._reserved_cpus, self.machine):
            return wrong
        lines = tuple(overcommitments(self.machine, self.reservations))
        return f"invalid Node Allocatable configuration. {' '.join(lines)}" if lines else ""


def _counted(numbers: Mapping[str, int]) -> Resources:
    return {name: Quantity(number) for name, number in numbers.items()}


def node_resources(settings: Settings, machine: MachineInfo) -> NodeResources:
    """Return what these settings leave of a machine for pods."""
    configuration = settings.configuration
    capacity = machine_capacity(
        machine,
        max_pods=configuration.max_pods,
        pods_per_core=configuration.pods_per_core,
        storage=configuration.local_storage_capacity_isolation,
    )
    return NodeResources(
        capacity,
        reservations(configuration, settings.options),
        configuration.reserved_system_cpus,
    )
