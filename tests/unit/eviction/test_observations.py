"""What is observed of a node, from its statistics."""

import pytest

from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.observations import Observed, amount_text, disk_layout, observations
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.stats.values import (
    Filesystem,
    MemoryUsage,
    NodeReading,
    NodeStats,
    Usage,
)

GI = 1 << 30


def disk(device: int, available: int = 5 * GI, inodes: int = 100) -> Filesystem:
    return Filesystem(
        time_ns=1,
        device=device,
        available=available,
        capacity=10 * GI,
        inodes=inodes,
        inodes_free=inodes // 2,
    )


def node(
    root: Filesystem | None = None,
    images: Filesystem | None = None,
    containers: Filesystem | None = None,
) -> NodeStats:
    memory = MemoryUsage(usage=7 * GI, working_set=6 * GI)
    return NodeStats(
        usage=Usage(time_ns=17, memory=memory),
        memory_bytes=8 * GI,
        swap_bytes=0,
        booted_at_ns=1,
        tasks=90,
        max_tasks=100,
        root=root,
        images=images,
        containers=containers,
    )


def test_all_signals_come_from_one_reading() -> None:
    pods = Usage(time_ns=17, memory=MemoryUsage(usage=GI, working_set=GI, limit=4 * GI))
    reading = NodeReading(node=node(disk(1), disk(2, GI), disk(3, 2 * GI)), pods=pods)
    found = observations(reading, 3.5)
    assert (found.at, found.measured_ns) == (3.5, 17)
    assert found.signals == {
        Signal.MEMORY: Observed(available=2 * GI, capacity=8 * GI),
        Signal.ALLOCATABLE_MEMORY: Observed(available=3 * GI, capacity=4 * GI),
        Signal.NODE_DISK: Observed(available=5 * GI, capacity=10 * GI),
        Signal.NODE_INODES: Observed(available=50, capacity=100),
        Signal.IMAGE_DISK: Observed(available=GI, capacity=10 * GI),
        Signal.IMAGE_INODES: Observed(available=50, capacity=100),
        Signal.CONTAINER_DISK: Observed(available=2 * GI, capacity=10 * GI),
        Signal.CONTAINER_INODES: Observed(available=50, capacity=100),
        Signal.PIDS: Observed(available=10, capacity=100),
    }


def test_pods_without_a_limit_have_no_memory_of_their_own() -> None:
    pods = Usage(time_ns=1, memory=MemoryUsage(usage=GI, working_set=GI))
    found = observations(NodeReading(node=node(), pods=pods), 0)
    assert set(found.signals) == {Signal.MEMORY, Signal.PIDS}


def test_a_disk_without_a_number_of_inodes_runs_out_of_none() -> None:
    found = observations(NodeReading(node=node(disk(1, inodes=0))), 0)
    assert Signal.NODE_DISK in found.signals
    assert Signal.NODE_INODES not in found.signals


def test_use_beyond_what_there_is_leaves_nothing() -> None:
    used = MemoryUsage(usage=9 * GI, working_set=9 * GI, limit=4 * GI)
    found = observations(NodeReading(node=node(), pods=Usage(time_ns=1, memory=used)), 0)
    assert found.signals[Signal.ALLOCATABLE_MEMORY].available == 0


@pytest.mark.parametrize(
    ("devices", "layout"),
    [
        ((1, 1, 1), DiskLayout.SHARED),
        ((1, 2, 2), DiskLayout.IMAGES_APART),
        ((1, 2, 1), DiskLayout.SPLIT),
        ((1, 2, 3), DiskLayout.SPLIT),
        ((1, None, None), DiskLayout.SHARED),
        ((None, 2, 2), DiskLayout.SHARED),
    ],
)
def test_which_disks_there_are_is_told_by_their_devices(
    devices: tuple[int | None, ...], layout: DiskLayout
) -> None:
    root, images, containers = (disk(each) if each is not None else None for each in devices)
    assert disk_layout(node(root, images, containers)) is layout


@pytest.mark.parametrize(
    ("signal", "amount", "text"),
    [
        (Signal.MEMORY, 95 << 20, "95Mi"),
        (Signal.NODE_DISK, (95 << 20) + 1, "99614721"),
        (Signal.NODE_INODES, 12_000, "12k"),
        (Signal.PIDS, 1024, "1024"),
        (Signal.MEMORY, 0, "0"),
    ],
)
def test_amounts_are_written_as_the_api_writes_them(signal: Signal, amount: int, text: str) -> None:
    assert amount_text(signal, amount) == text
