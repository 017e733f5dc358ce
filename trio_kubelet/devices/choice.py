"""Which devices a pod needs, and which of the free ones its containers get. Pure.

Containers are looked at in the order in which they start. Devices of an init container are free
for those after it, because it has ended by then; a sidecar runs on and keeps its own. So a pod
needs fewer devices than its containers ask for together.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from attrs import frozen

from trio_kubelet.devices.checkpoint import NO_NUMA_NODE, DeviceRecord
from trio_kubelet.devices.client import Device, Devices
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.k8s.totals import passing_containers

IsDevice = Callable[[str], bool]
"""True if devices of a plugin are counted under this name."""


@frozen
class Demand:
    """The devices of a resource that a container of a pod asks for."""

    container: str
    resource: str
    count: int


def container_demands(pod: Pod, container: Container, is_device: IsDevice) -> Iterator[Demand]:
    """The demands of one container of a pod, but for what it has by a claim of the pod.

    Limits count: for extended resources requests equal them.
    """
    limits = container.resources.limits if container.resources is not None else {}
    claimed = pod.status.claimed_resources(container.name)
    for resource, amount in limits.items():
        if amount.value > 0 and is_device(resource) and resource not in claimed:
            yield Demand(container.name, resource, amount.value)


def pod_demands(pod: Pod, is_device: IsDevice) -> tuple[Demand, ...]:
    """The demands of all containers that are there when a pod is admitted, in their order."""
    return tuple(
        demand
        for container in pod.spec.admitted_containers
        for demand in container_demands(pod, container, is_device)
    )


def needed_devices(pod: Pod, is_device: IsDevice) -> Mapping[str, int]:
    """The number of devices of each resource that a pod needs."""
    needed: dict[str, int] = {}
    reusable: dict[str, int] = {}
    passing = passing_containers(pod.spec)
    for demand in pod_demands(pod, is_device):
        resource, left = demand.resource, reusable.get(demand.resource, 0)
        reused = min(demand.count, left)
        needed[resource] = needed.get(resource, 0) + demand.count - reused
        more = demand.count - reused if demand.container in passing else -reused
        reusable[resource] = left + more
    return needed


def reusable_devices(
    pod: Pod, records: Mapping[str, DeviceRecord], container: str
) -> frozenset[str]:
    """The devices of a resource that a container takes over from those before it in its pod.

    `records` are those of the pod for the resource, by container.
    """
    passing, free = passing_containers(pod.spec), set[str]()
    for each in pod.spec.admitted_containers:
        if each.name == container:
            break
        record = records.get(each.name)
        if record is not None and each.name in passing:
            free |= record.ids
        elif record is not None:
            free -= record.ids
    return frozenset(free)


def chosen_devices(
    count: int, reusable: Iterable[str], preferred: Collection[str], free: Iterable[str]
) -> frozenset[str]:
    """Choose devices: those of the pod, then what the plugin prefers of the free ones, then others.

    Fewer than `count` if there are no more. The same ones are chosen of the same.
    """
    rest = sorted(free)
    order = (*sorted(reusable), *(e for e in rest if e in preferred), *rest)
    return frozenset(tuple(dict.fromkeys(order))[:count])


def by_numa_node(ids: Collection[str], devices: Devices) -> Mapping[int, tuple[str, ...]]:
    """Return ids of devices by their NUMA nodes, as the checkpoint has them."""
    found: dict[int, list[str]] = {}
    for each in sorted(ids):
        known = devices.get(each)
        for node in (known.numa_nodes if known is not None else ()) or (NO_NUMA_NODE,):
            found.setdefault(node, []).append(each)
    return {node: tuple(each) for node, each in sorted(found.items())}


def by_device(record: DeviceRecord) -> Devices:
    """Return the devices of a record by their ids, as a plugin lists them."""
    nodes: dict[str, list[int]] = {}
    for node, ids in record.devices.items():
        for each in ids:
            nodes.setdefault(each, []).extend([node] if node != NO_NUMA_NODE else [])
    return {each: Device(is_healthy=True, numa_nodes=tuple(at)) for each, at in nodes.items()}
