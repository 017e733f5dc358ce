"""What is observed of a node, from its statistics."""

import pytest
from attrs import evolve

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


def test_memory_is_what_the_kernel_says_is_available_where_that_is_asked_for() -> None:
    reading = NodeReading(node=evolve(node(), available_memory_bytes=5 * GI))
    by_default = observations(reading, 0).signals[Signal.MEMORY]
    asked_for = observations(reading, 0, by_mem_available=True).signals[Signal.MEMORY]
    assert (by_default.available, asked_for.available) == (2 * GI, 5 * GI)
    unknown = observations(NodeReading(node=node()), 0, by_mem_available=True)
    assert unknown.signals[Signal.MEMORY].available == 2 * GI


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
        ((1, 2, None), DiskLayout.SHARED),
    ],
)
def test_which_disks_there_are_is_told_by_their_devices(
    devices: tuple[int | None, ...], layout: DiskLayout
) -> None:
    root, images, containers = (disk(each) if each is not None else None for each in devices)
    assert disk_layout(node(root, images, containers)) is layout


@pytest.mark.parametrize("missing", range(3))
@pytest.mark.parametrize("known", list(DiskLayout))
def test_where_a_disk_cannot_be_measured_they_are_what_they_were(
    missing: int, known: DiskLayout
) -> None:
    found = [disk(1), disk(2), disk(2)]
    disks = [each if number != missing else None for number, each in enumerate(found)]
    assert disk_layout(node(*disks), known) is known


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
