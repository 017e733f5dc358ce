"""The devices of a pod as the topology manager places them: near the CPUs and memory beside them.

A plugin says of each device at which NUMA nodes it is. With a topology policy devices are chosen at
the pod's admission, therefore, and reserved; the pod's task has them allocated later, or others of
the same nodes that the plugin prefers. Resources whose plugin does not serve have no say: nobody
knows their devices. A pod that waits for them is placed anew when they are known.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import field, frozen

from state_machines.device_plugin import DevicePluginState
from trio_kubelet.devices import DeviceManager
from trio_kubelet.devices.choice import (
    Demand,
    chosen_devices,
    container_demands,
    needed_devices,
    passing_containers,
    pod_demands,
)
from trio_kubelet.devices.client import Devices
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.resource_managers.hints import (
    Hints,
    NodeMask,
    TopologyHint,
    hints_by_size,
    mask_of,
    masks_within,
    nodes_in,
)


@frozen(slots=False)
class DevicePool:
    """The devices of a resource for one pod.

    `free` are those that nobody has, `reusable` those of init containers that end before others of
    the pod start. `nodes` are the machine's; what a plugin says of others does not count.
    """

    devices: Devices
    nodes: tuple[int, ...]
    free: set[str]
    reusable: set[str] = field(factory=set)

    @cached_property
    def where(self) -> Mapping[str, NodeMask]:
        """The nodes of each device that is at some."""
        told = {each.numa_nodes for each in self.devices.values() if each.numa_nodes}
        masks = {nodes: mask_of(set(nodes) & set(self.nodes)) for nodes in told}
        return {
            name: masks[each.numa_nodes] for name, each in self.devices.items() if each.numa_nodes
        }

    @cached_property
    def everywhere(self) -> Mapping[NodeMask, int]:
        """The numbers of all devices by their nodes."""
        return Counter(self.where.values())

    def hints(self, count: int, known: Collection[str]) -> Sequence[TopologyHint] | None:
        """The sets of nodes that have so many; None if the plugin does not say where they are.

        Those that are to be used again must be in the set. Preferred are sets of as few nodes as
        have so many, free or not. `known` is what the container has already.
        """
        if not self.where:
            return None
        again: Collection[str] = () if known else self.reusable
        if len(again) + len(known or self.free) < count:
            return []
        free, together = self._by_nodes(known or self.free), self._by_nodes(again)
        masks = masks_within(self.nodes)
        enough = [mask for mask in masks if _within(self.everywhere, mask) >= count]
        fewest = min((mask.bit_count() for mask in enough), default=len(self.nodes))
        found = [
            hint
            for mask, hint in hints_by_size(self.nodes, fewest).items()
            if _within(together, mask) == len(again) and len(again) + _within(free, mask) >= count
        ]
        return found or None  # Some are at no node.

    def take(self, count: int, nodes: NodeMask | None) -> frozenset[str]:
        """Take devices: those to be used again, then free ones of the nodes, then others."""
        near = {name for name in self.free if nodes is not None and self.where.get(name, 0) & nodes}
        taken = chosen_devices(count, self.reusable, near, self.free)
        self.free.difference_update(taken)
        return taken

    def _by_nodes(self, names: Collection[str]) -> Mapping[NodeMask, int]:
        return Counter(self.where[name] for name in names if name in self.where)


def _within(amounts: Mapping[NodeMask, int], nodes: NodeMask) -> int:
    return sum(amount for at, amount in amounts.items() if at & nodes)


class DeviceDraft:
    """Devices for the containers of one pod, on a machine with these NUMA nodes.

    `chosen` are those for each demand, `nodes` the nodes of containers that were to be served from
    some.
    """

    def __init__(self, pod: Pod, devices: DeviceManager, nodes: tuple[int, ...]) -> None:
        self.pod = pod
        self.chosen: dict[Demand, frozenset[str]] = {}
        self.nodes: dict[str, tuple[int, ...]] = {}
        self._devices = devices
        self._machine_nodes = nodes
        self._passing = passing_containers(pod)
        self._pools: dict[str, DevicePool] = {}

    @property
    def awaits_plugins(self) -> bool:
        """True if the pod needs devices that it does not have, and of which nothing is known."""
        return any(
            not self._is_served(each.resource) and not self._known(each)
            for each in pod_demands(self.pod, self._devices.is_device)
        )

    def hints(self, container: Container) -> Hints:
        """The nodes from which a container's devices can be had."""
        return {
            demand.resource: self._pool(demand.resource).hints(demand.count, self._known(demand))
            for demand in self._demands(container)
        }

    def pod_hints(self) -> Hints:
        """The nodes from which the devices of all containers together can be had."""
        uid, records = self.pod.metadata.uid, self._devices.records
        return {
            resource: self._pool(resource).hints(count, records.held_by(uid, resource))
            for resource, count in needed_devices(self.pod, self._is_served).items()
        }

    def take(self, container: Container, nodes: NodeMask | None) -> None:
        """Take a container's devices, of the nodes first; none if there are not enough.

        Admission has counted them. What is short all the same, the pod's task will wait for.
        """
        for demand in self._demands(container):
            pool, known = self._pool(demand.resource), self._known(demand)
            taken = known or pool.take(demand.count, nodes)
            if container.name in self._passing:
                pool.reusable.update(taken)
            else:
                pool.reusable.difference_update(taken)
            if len(taken) == demand.count and not known:
                self.chosen[demand] = taken
        if nodes is not None:
            self.nodes[container.name] = nodes_in(nodes)

    def _demands(self, container: Container) -> Iterator[Demand]:
        return container_demands(container, self._is_served)

    def _is_served(self, resource: str) -> bool:
        known = self._devices.plugins.get(resource)
        return known is not None and known.state is DevicePluginState.SERVING

    def _known(self, demand: Demand) -> frozenset[str]:
        """The devices that a container has already."""
        record = self._devices.records.get(self.pod.metadata.uid, demand.container, demand.resource)
        return record.ids if record is not None else frozenset()

    def _pool(self, resource: str) -> DevicePool:
        pool = self._pools.get(resource)
        if pool is None:
            known, held = self._devices.plugins.get(resource), self._devices.records.held(resource)
            devices, healthy = (known.devices, known.healthy) if known else ({}, frozenset())
            pool = DevicePool(devices, self._machine_nodes, set(healthy - held))
            self._pools[resource] = pool
        return pool
