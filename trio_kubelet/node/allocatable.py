"""How much the node has, and how much of it pods may ask for.

`capacity` is the machine's size, `allocatable` what is left when the reservations of the system
and of Kubernetes' own processes and the hard eviction thresholds are taken off (API fields
kubeReserved, systemReserved, evictionHard of KubeletConfiguration). Huge pages are set aside from
memory, so they come off allocatable memory too. All pure; amounts are Quantities.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping

from attrs import field, frozen

from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.options import NodeOptions
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

EVICTION_SIGNALS = {"memory.available": MEMORY, "nodefs.available": EPHEMERAL_STORAGE}
"""The hard eviction signals whose thresholds are kept from pods, and of which resource."""

_NO_THRESHOLD = ("0%", "100%")


@frozen(kw_only=True)
class NodeAmounts:
    """What the node has in all of each resource, and what of it pods may ask for."""

    capacity: Resources = field(factory=dict)
    allocatable: Resources = field(factory=dict)


@frozen(kw_only=True)
class Reservations:
    """What pods may not have. `eviction` maps signals to thresholds: `100Mi`, `10%`."""

    system: Resources = field(factory=dict)
    kube: Resources = field(factory=dict)
    eviction: Mapping[str, str] = field(factory=dict)


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
    return Reservations(
        system=system, kube=kube, eviction={} if ignored else configuration.eviction_hard
    )


def _amounts(texts: Mapping[str, str]) -> dict[str, Quantity]:
    return {name: Quantity(text) for name, text in texts.items()}


def cpu_count(cpu_list: str) -> int:
    """How many CPUs a list such as `0-2,7` names."""
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in cpu_list.split(","))):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return len(cpus)


def machine_capacity(
    machine: MachineInfo, *, max_pods: int, pods_per_core: int = 0, storage: bool = True
) -> Resources:
    """What the node has. `storage` is localStorageCapacityIsolation: disk space is a resource."""
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
    """What is taken off each resource of the machine; the number of pods is not reserved."""
    eviction = _eviction_reserve(capacity, reservations.eviction)
    sources = (reservations.system, reservations.kube, eviction)
    amounts = {
        name: Quantity.sum(source[name] for source in sources if name in source)
        for name in capacity
        if name != PODS
    }
    return {name: amount for name, amount in amounts.items() if amount}


def allocatable(capacity: Resources, reservations: Reservations) -> Resources:
    """What pods may ask for; never less than nothing.

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
    """What there is where so much is reserved."""
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
    """Those of these resources that are huge pages."""
    return frozenset(name for name in resources if name.startswith(HUGEPAGES_PREFIX))


def _not_negative(amount: Quantity) -> Quantity:
    return amount if amount.nano >= 0 else Quantity.from_nano(0, amount.notation)


def _eviction_reserve(capacity: Resources, thresholds: Mapping[str, str]) -> Resources:
    return {
        resource: threshold_amount(thresholds[signal], capacity.get(resource, Quantity(0)))
        for signal, resource in EVICTION_SIGNALS.items()
        if signal in thresholds and is_threshold(thresholds[signal])
    }


def is_threshold(text: str) -> bool:
    """Whether a threshold asks for anything: `0%` and `100%` turn one off."""
    return text not in _NO_THRESHOLD


def threshold_amount(text: str, capacity: Quantity) -> Quantity:
    """A threshold as an amount; percentages are of the capacity, in single precision.

    The Go kubelet keeps percentages as 32-bit floats: at the size of a disk that moves the
    result by some thousand bytes, and allocatable of the same node must come out the same.
    """
    if not text.endswith("%"):
        return Quantity(text)
    share = _single(_single(float(text[:-1])) / 100)
    return Quantity.from_bytes(int(float(capacity.value) * share))


def _single(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)
