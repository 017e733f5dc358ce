"""Observations of a node: what is available of each signal, from its statistics. Pure.

Available is what the Go kubelet takes for it. Memory: all but the working set, which is what is
in use without the page cache that is not (inactive files); where it is asked for, the kernel's
MemAvailable, for which active files count as free, too. Disks: what the file system gives to
those who are not root. Process ids: the smaller of the kernel's limits less the tasks there are.
"""

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from trio_kubelet.config.eviction import SIGNALS, Disk, Resource, Signal, disk_signal
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.k8s import Quantity
from trio_kubelet.stats.values import Filesystem, NodeReading, NodeStats


@frozen(kw_only=True)
class Observed:
    """The amounts of a signal, in bytes, inodes or process ids."""

    available: int
    capacity: int


@frozen(kw_only=True)
class Observations:
    """The measurements of one time. What failed is not in it.

    `at` is when measuring began: trio's clock. `measured_ns` is the same in nanoseconds since the
    epoch.
    """

    at: float
    measured_ns: int = 0
    signals: Mapping[Signal, Observed] = field(factory=dict)
    layout: DiskLayout = DiskLayout.SHARED


def observations(
    reading: NodeReading,
    at: float,
    known_layout: DiskLayout = DiskLayout.SHARED,
    *,
    by_mem_available: bool = False,
) -> Observations:
    """The observations in a reading of the node that began `at`.

    `known_layout` is that of the observation before.
    """
    return Observations(
        at=at,
        measured_ns=reading.node.usage.time_ns,
        signals=dict(_signals(reading, by_mem_available)),
        layout=disk_layout(reading.node, known_layout),
    )


def disk_layout(node: NodeStats, known: DiskLayout = DiskLayout.SHARED) -> DiskLayout:
    """The disks of a node. They are what they were if one could not be measured."""
    root, images, containers = (
        each.device if each is not None else None
        for each in (node.root, node.images, node.containers)
    )
    if None in (root, images, containers):
        return known
    if images == root:
        return DiskLayout.SHARED
    return DiskLayout.IMAGES_APART if containers == images else DiskLayout.SPLIT


def amount_text(signal: Signal, amount: int) -> str:
    """An amount of a signal in the words of the API (`95Mi`, `12k`)."""
    quantity = (
        Quantity.from_bytes(amount) if SIGNALS[signal].resource.in_bytes else Quantity(amount)
    )
    return quantity.canonical


def _signals(reading: NodeReading, by_mem_available: bool) -> Iterator[tuple[Signal, Observed]]:
    node = reading.node
    memory = node.usage.memory
    if memory is not None and node.memory_bytes:
        available = max(0, node.memory_bytes - memory.working_set)
        if by_mem_available and node.available_memory_bytes is not None:
            available = node.available_memory_bytes
        yield Signal.MEMORY, Observed(available=available, capacity=node.memory_bytes)
    of_pods = reading.pods.memory if reading.pods is not None else None
    if of_pods is not None and of_pods.limit is not None:
        available = max(0, of_pods.limit - of_pods.working_set)
        yield Signal.ALLOCATABLE_MEMORY, Observed(available=available, capacity=of_pods.limit)
    yield from _disk(Disk.NODE, node.root)
    yield from _disk(Disk.IMAGES, node.images)
    yield from _disk(Disk.CONTAINERS, node.containers)
    if node.tasks is not None and node.max_tasks is not None:
        available = node.max_tasks - node.tasks
        yield Signal.PIDS, Observed(available=available, capacity=node.max_tasks)


def _disk(disk: Disk, found: Filesystem | None) -> Iterator[tuple[Signal, Observed]]:
    """A file system without a fixed number of inodes (btrfs) runs out of none."""
    if found is None:
        return
    if found.available is not None and found.capacity is not None:
        amounts = Observed(available=found.available, capacity=found.capacity)
        yield disk_signal(disk, Resource.STORAGE), amounts
    if found.inodes_free is not None and found.inodes:
        amounts = Observed(available=found.inodes_free, capacity=found.inodes)
        yield disk_signal(disk, Resource.INODES), amounts
