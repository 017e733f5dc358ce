"""Observations of a node: what is available of each signal, from its statistics. Pure.

Available is what the Go kubelet takes for it. Memory: all but the working set, which is what is
in use without the page cache that is not (inactive files). Disks: what the file system gives to
those who are not root. Process ids: the smaller of the kernel's limits less the tasks there are.
"""

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.k8s import Quantity
from trio_kubelet.stats.values import Filesystem, NodeReading, NodeStats

IN_BYTES = frozenset(
    {
        Signal.MEMORY,
        Signal.ALLOCATABLE_MEMORY,
        Signal.NODE_DISK,
        Signal.IMAGE_DISK,
        Signal.CONTAINER_DISK,
    }
)
"""The signals that are amounts of bytes; the others are numbers of inodes or process ids."""


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


def observations(reading: NodeReading, at: float) -> Observations:
    """The observations in a reading of the node that began `at`."""
    return Observations(
        at=at,
        measured_ns=reading.node.usage.time_ns,
        signals=dict(_signals(reading)),
        layout=disk_layout(reading.node),
    )


def disk_layout(node: NodeStats) -> DiskLayout:
    """The disks of a node; one that is not known is not apart."""
    root, images, containers = (
        each.device if each is not None else None
        for each in (node.root, node.images, node.containers)
    )
    if None in (root, images) or images == root:
        return DiskLayout.SHARED
    return DiskLayout.IMAGES_APART if containers == images else DiskLayout.SPLIT


def amount_text(signal: Signal, amount: int) -> str:
    """An amount of a signal in the words of the API (`95Mi`, `12k`)."""
    quantity = Quantity.from_bytes(amount) if signal in IN_BYTES else Quantity(amount)
    return quantity.canonical


def _signals(reading: NodeReading) -> Iterator[tuple[Signal, Observed]]:
    node = reading.node
    memory = node.usage.memory
    if memory is not None and node.memory_bytes:
        available = max(0, node.memory_bytes - memory.working_set)
        yield Signal.MEMORY, Observed(available=available, capacity=node.memory_bytes)
    of_pods = reading.pods.memory if reading.pods is not None else None
    if of_pods is not None and of_pods.limit is not None:
        available = max(0, of_pods.limit - of_pods.working_set)
        yield Signal.ALLOCATABLE_MEMORY, Observed(available=available, capacity=of_pods.limit)
    yield from _disk(node.root, Signal.NODE_DISK, Signal.NODE_INODES)
    yield from _disk(node.images, Signal.IMAGE_DISK, Signal.IMAGE_INODES)
    yield from _disk(node.containers, Signal.CONTAINER_DISK, Signal.CONTAINER_INODES)
    if node.tasks is not None and node.max_tasks is not None:
        available = node.max_tasks - node.tasks
        yield Signal.PIDS, Observed(available=available, capacity=node.max_tasks)


def _disk(
    disk: Filesystem | None, space: Signal, inodes: Signal
) -> Iterator[tuple[Signal, Observed]]:
    """A file system without a fixed number of inodes (btrfs) runs out of none."""
    if disk is None:
        return
    if disk.available is not None and disk.capacity is not None:
        yield space, Observed(available=disk.available, capacity=disk.capacity)
    if disk.inodes_free is not None and disk.inodes:
        yield inodes, Observed(available=disk.inodes_free, capacity=disk.inodes)
