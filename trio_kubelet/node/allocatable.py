"""The amounts that the node has, that pods may ask for, and that they may use together.

`capacity` is the machine's size, `allocatable` what is left when the reservations of the system
and of Kubernetes' own processes and the hard eviction thresholds are taken off (API fields
kubeReserved, systemReserved, evictionHard of KubeletConfiguration). Huge pages are set aside from
memory, so they come off allocatable memory too. All pure; amounts are Quantities.
"""

from collections.abc import Iterable, Iterator, Mapping

from attrs import field, frozen

from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.eviction.thresholds import hard_thresholds
from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Quantity,
)
from trio_kubelet.node.machine import MachineInfo

Resources = Mapping[str, Quantity]

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
EPHEMERAL_STORAGE = "ephemeral-storage"

EVICTION_SIGNALS = {Signal.MEMORY: MEMORY, Signal.NODE_DISK: EPHEMERAL_STORAGE}
"""The hard eviction signals whose thresholds are kept from pods, and of which resource."""


@frozen(kw_only=True)
class NodeAmounts:
    """The amounts that the node has in all, and those that pods may ask for."""

    capacity: Resources = field(factory=dict)
    allocatable: Resources = field(factory=dict)


@frozen(kw_only=True)
class Reservations:
    """The amounts that pods may not have: `eviction` is what the hard thresholds keep available."""

    system: Resources = field(factory=dict)
    kube: Resources = field(factory=dict)
    eviction: Mapping[Signal, ThresholdValue] = field(factory=dict)


def reservations(configuration: KubeletConfiguration, options: NodeOptions) -> Reservations:
    """The reservations that the settings name.

    Whole CPUs that are reserved (`reservedSystemCPUs`) count instead of the CPU shares.
    """
    system = _amounts(configuration.system_reserved)
    kube = _amounts(configuration.kube_reserved)
    reserved_cpus = cpu_count(configuration.reserved_system_cpus)
    if reserved_cpus:
        kube.pop(CPU, None)
        system[CPU] = Quantity(reserved_cpus)
    ignored = options.experimental_allocatable_ignore_eviction
    hard = () if ignored else hard_thresholds(configuration)
    eviction = {threshold.signal: threshold.value for threshold in hard}
    return Reservations(system=system, kube=kube, eviction=eviction)


def _amounts(texts: Mapping[str, str]) -> dict[str, Quantity]:
    return {name: Quantity(text) for name, text in texts.items()}


def cpu_ranges(cpu_list: str) -> tuple[range, ...]:
    """The CPUs in a list such as `0-2,7`, by rising number and each once."""
    parts = (part.strip().partition("-") for part in cpu_list.split(",") if part.strip())
    ranges: list[range] = []
    for first, last in sorted((int(first), int(last or first)) for first, _, last in parts):
        start = max(first, ranges[-1].stop) if ranges else first
        if last >= start:
            ranges.append(range(start, last + 1))
    return tuple(ranges)


def cpu_count(cpu_list: str) -> int:
    """The number of CPUs in a list such as `0-2,7`."""
    return sum(cpus.stop - cpus.start for cpus in cpu_ranges(cpu_list))


def reserved_cpus_problem(cpu_list: str, capacity: Resources) -> str:
    """The reason why CPUs cannot be reserved (`reservedSystemCPUs`); "" if they can."""
    cores = capacity[CPU].milli_value // 1000
    ranges = cpu_ranges(cpu_list)
    if not ranges or ranges[-1].stop <= cores:
        return ""
    return (
        f'Invalid cpuset "{cpu_list}" specified by --reserved-cpus (reservedSystemCPUs): '
        f"the CPUs of this machine are 0-{cores - 1}"
    )


def machine_capacity(
    machine: MachineInfo, *, max_pods: int, pods_per_core: int = 0, storage: bool = True
) -> Resources:
    """The node's amounts. `storage` is localStorageCapacityIsolation: disk space is a resource."""
    cores = machine.size.cpu_milli // 1000
    found = {
        CPU: Quantity.from_milli(machine.size.cpu_milli),
        MEMORY: Quantity.from_bytes(machine.size.memory_bytes),
        PODS: Quantity(min(max_pods, cores * pods_per_core) if pods_per_core else max_pods),
    }
    for page_size, amount in machine.size.hugepages.items():
        name = f"{HUGEPAGES_PREFIX}{Quantity.from_bytes(page_size).canonical}"
        found[name] = Quantity.from_bytes(amount)
    if storage and machine.storage_bytes is not None:
        found[EPHEMERAL_STORAGE] = Quantity.from_bytes(machine.storage_bytes)
    return found


def reserved(capacity: Resources, reservations: Reservations) -> Resources:
    """The reserved amounts of each resource of the machine; the number of pods is not reserved."""
    eviction = _eviction_reserve(capacity, reservations.eviction)
    sources = (reservations.system, reservations.kube, eviction)
    amounts = {
        name: Quantity.sum(source[name] for source in sources if name in source)
        for name in capacity
        if name != PODS
    }
    return {name: amount for name, amount in amounts.items() if amount}


def allocatable(capacity: Resources, reservations: Reservations) -> Resources:
    """The amounts that pods may ask for; never less than nothing.

    `capacity` may hold resources that others announce (extended resources): they are not reduced.
    """
    taken = reserved(capacity, reservations)
    left = {
        name: _not_negative(amount - taken[name]) if name in taken else amount
        for name, amount in capacity.items()
    }
    pages = [amount for name, amount in capacity.items() if name.startswith(HUGEPAGES_PREFIX)]
    if MEMORY in left:
        left[MEMORY] = _not_negative(left[MEMORY] - Quantity.sum(pages))
    return left


def node_amounts(capacity: Resources, reservations: Reservations) -> NodeAmounts:
    """The amounts of a node that reserves so much."""
    return NodeAmounts(capacity=capacity, allocatable=allocatable(capacity, reservations))


def overcommitments(capacity: Resources, reservations: Reservations) -> Iterator[str]:
    """One line for each resource of which more is reserved than there is."""
    for name, amount in reserved(capacity, reservations).items():
        if amount > capacity[name]:
            yield (
                f'Resource "{name}" has a reservation of {amount.canonical} but capacity of '
                f"{capacity[name].canonical}. Expected capacity >= reservation."
            )


def hugepage_names(resources: Iterable[str]) -> frozenset[str]:
    """The names among these resources that are huge pages."""
    return frozenset(name for name in resources if name.startswith(HUGEPAGES_PREFIX))


def _not_negative(amount: Quantity) -> Quantity:
    return amount if amount.nano >= 0 else Quantity.from_nano(0, amount.notation)


def _eviction_reserve(
    capacity: Resources, thresholds: Mapping[Signal, ThresholdValue]
) -> Resources:
    return {
        resource: thresholds[signal].of(capacity.get(resource, Quantity(0)))
        for signal, resource in EVICTION_SIGNALS.items()
        if signal in thresholds
    }
