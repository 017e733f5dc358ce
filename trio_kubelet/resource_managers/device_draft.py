"""The devices of a pod as the topology manager places them: near the CPUs and memory beside them.

A plugin says of each device at which NUMA nodes it is. With a topology policy devices are chosen at
the pod's admission, therefore, and reserved; the pod's task has them allocated later, or others of
the same nodes that the plugin prefers. Resources whose plugin does not serve have no say: nobody
knows their devices. A pod that waits for them is placed anew when they are known.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from heapq import merge
from itertools import islice, repeat

from state_machines.device_plugin import DevicePluginState
from trio_kubelet.devices import DeviceManager
from trio_kubelet.devices.choice import (
    Demand,
    container_demands,
    needed_devices,
    pod_demands,
)
from trio_kubelet.devices.client import DevicesByNodes
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.k8s.totals import passing_containers
from trio_kubelet.resource_managers.hints import (
    Hints,
    NodeMask,
    TopologyHint,
    hints_by_size,
    mask_of,
    masks_within,
    nodes_in,
)


class DevicePool:
    """The devices of a resource for one pod.

    `listed` are all of them, `free` those that nobody has, `reusable` those of init containers that
    end before others of the pod start. `nodes` are the machine's; what a plugin says of others does
    not count.

    The containers of a pod may ask for thousands of devices, one by one. So all devices are looked
    at when the pool is made, and kept by the sets of nodes at which they are, ordered by their ids.
    """

    def __init__(
        self,
        listed: DevicesByNodes,
        nodes: tuple[int, ...],
        free: AbstractSet[str],
        reusable: AbstractSet[str] = frozenset(),
    ) -> None:
        self.reusable = set(reusable)
        self._nodes = nodes
        self._is_anywhere = any(listed)
        self._ids: dict[NodeMask, Sequence[str]] = {}
        for told, names in listed.items():
            mask = mask_of(set(told) & set(nodes))
            before = self._ids.get(mask)
            self._ids[mask] = names if before is None else [*merge(before, names)]
        self._free = {
            mask: deque(filter(free.__contains__, ids)) for mask, ids in self._ids.items()
        }

    def hints(self, count: int, known: Collection[str]) -> Sequence[TopologyHint] | None:
        """The sets of nodes that have so many; None if the plugin does not say where they are.

        Those that are to be used again must be in the set. Preferred are sets of as few nodes as
        have so many, free or not. `known` is what the container has already.
        """
        if not self._is_anywhere:
            return None
        again: Collection[str] = () if known else self.reusable
        numbers = {mask: len(names) for mask, names in self._free.items()}
        if len(again) + (len(known) or sum(numbers.values())) < count:
            return []
        free = self._at_some(self._counted(known) if known else numbers)
        together = self._at_some(self._counted(again)) if again else {}
        found = [
            hint
            for mask, hint in hints_by_size(self._nodes, self._fewest(count)).items()
            if len(again) + free[mask] >= count and (not again or together[mask] == len(again))
        ]
        return found or None  # Some are at no node.

    def _fewest(self, count: int) -> int:
        """The size of the smallest sets of nodes that have so many devices, free or not."""
        enough = (mask.bit_count() for mask, number in self._all.items() if number >= count)
        return min(enough, default=len(self._nodes))

    @cached_property
    def _all(self) -> Mapping[NodeMask, int]:
        return self._at_some({mask: len(names) for mask, names in self._ids.items()})

    @cached_property
    def _where(self) -> Mapping[str, NodeMask]:
        return {name: mask for mask, names in self._ids.items() for name in names}

    def _counted(self, names: Iterable[str]) -> Mapping[NodeMask, int]:
        return Counter(self._where[name] for name in names if name in self._where)

    def _at_some(self, numbers: Mapping[NodeMask, int]) -> Mapping[NodeMask, int]:
        """The number of devices that are at some node of a set, for each set of nodes.

        Those that are at no node of it are all within the set of the other nodes.
        """
        masks = (0, *masks_within(self._nodes))
        within = [numbers.get(mask, 0) for mask in masks]
        for position in range(len(self._nodes)):
            size = 1 << position
            for start in range(0, len(within), 2 * size):
                middle, end = start + size, start + 2 * size
                pairs = zip(within[start:middle], within[middle:end], strict=True)
                within[middle:end] = [one + other for one, other in pairs]
        total = within[-1]
        return {mask: total - less for mask, less in zip(masks, reversed(within), strict=True)}

    def take(self, count: int, nodes: NodeMask | None) -> frozenset[str]:
        """Take devices: those to be used again, then free ones of the nodes, then others."""
        taken = sorted(self.reusable)[:count]
        taken += self._first(count - len(taken), [m for m in self._free if m & (nodes or 0)])
        taken += self._first(count - len(taken), self._free)
        return frozenset(taken)

    def _first(self, count: int, masks: Iterable[NodeMask]) -> Sequence[str]:
        """Take the first free devices that are at any of these sets of nodes."""
        by_id = merge(*(zip(self._free[mask], repeat(mask)) for mask in masks))
        first = [*islice(by_id, count)]
        for _, mask in first:
            self._free[mask].popleft()
        return [name for name, _ in first]


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
        self._passing = passing_containers(pod.spec)
        self._pools: dict[str, DevicePool] = {}

    @property
    def awaits_plugins(self) -> bool:
        """True if the pod needs devices that it does not have, and of which nothing is known."""
        return any(not self._is_served(each.resource) for each in self._open_demands())

    @property
    def lacks_devices(self) -> bool:
        """True if the pod needs devices that it does not have."""
        return any(self._open_demands())

    def _open_demands(self) -> Iterator[Demand]:
        demands = pod_demands(self.pod, self._devices.is_device)
        return (each for each in demands if not self._known(each))

    def demands(self, container: Container) -> int:
        """The number of resources that a container is given devices of."""
        return sum(1 for _ in self._demands(container))

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
        return container_demands(self.pod, container, self._is_served)

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
            by_nodes = known.listed.by_nodes if known is not None else {}
            free = known.healthy - held if known is not None else frozenset()
            pool = DevicePool(by_nodes, self._machine_nodes, free)
            self._pools[resource] = pool
        return pool
