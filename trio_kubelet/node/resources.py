"""The amounts that the node has and that pods may ask for, computed in one place for all.

The machine is read once, at the start. Nobody keeps a copy of the amounts: admission, volumes,
the configs of containers and the Node object ask here.
"""

from collections.abc import Collection

from trio_kubelet.config.settings import Settings
from trio_kubelet.k8s import Pod
from trio_kubelet.node.allocatable import (
    MEMORY,
    NodeAmounts,
    Reservations,
    Resources,
    machine_capacity,
    node_amounts,
    overcommitments,
    pods_cgroup_config,
    reservations,
)
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.resources import CgroupConfig, pod_limits


class NodeResources:
    """Owner of the amounts. `machine` is what the machine has of each resource."""

    def __init__(self, machine: Resources, reservations: Reservations) -> None:
        self._machine = machine
        self._reservations = reservations
        self._amounts = node_amounts(machine, reservations)

    def amounts(self) -> NodeAmounts:
        """Return what the node has, and what of it pods may ask for."""
        return self._amounts

    def allocatable(self) -> Resources:
        """Return what pods may ask for in all."""
        return self._amounts.allocatable

    def memory_for(self, pod: Pod) -> int:
        """Return the bytes that a pod may use: its limit, or what there is for all pods."""
        return (pod_limits(pod).get(MEMORY) or self.allocatable()[MEMORY]).value

    def pods_limits(self, enforced: Collection[str], max_pids: int | None) -> CgroupConfig:
        """Return the values of the cgroup of all pods; the arguments are `pods_cgroup_config`'s."""
        return pods_cgroup_config(self._machine, self._reservations, enforced, max_pids)

    def problem(self) -> str:
        """Return why a node cannot be run like this, in one line; empty if it can."""
        lines = tuple(overcommitments(self._machine, self._reservations))
        return f"invalid Node Allocatable configuration. {' '.join(lines)}" if lines else ""


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
