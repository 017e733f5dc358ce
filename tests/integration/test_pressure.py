"""Disks that are really full, memory that is really there, and the configuration's defaults."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio

from trio_kubelet.config.eviction import Signal
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.eviction.observations import observations
from trio_kubelet.eviction.rhythm import PERIOD_SECONDS
from trio_kubelet.eviction.thresholds import configured_thresholds
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.node.machine import max_pids
from trio_kubelet.resources import CgroupTree
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.stats import CgroupReader, PodPaths, StatsProvider, StatsSources
from trio_kubelet.stats.kernel_text import meminfo
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal
from trio_kubelet.volumes.mount import mount, unmount

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

MI = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 10 MiB with 100 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("tmpfs", folder, "tmpfs", options="size=10m,nr_inodes=100")
    try:
        yield folder
    finally:
        unmount(folder)


@asynccontextmanager
async def statistics(root: Path) -> AsyncIterator[StatsProvider]:
    """The statistics of this machine, of no pods."""
    provider = StatsProvider(
        StatsSources(
            client=cast("RuntimeClient", None),
            clock=SystemClock(),
            reader=CgroupReader(
                tree=CgroupTree.find(mount_points()), max_tasks=max_pids(Path("/"))
            ),
            pods=tuple,
            paths=lambda pod: PodPaths(
                uid=pod.uid, namespace=pod.namespace, volumes=root, logs=root
            ),
            processes=dict,
            root_folder=root,
            images_on_disk=False,
            volume_seconds=60,
            of_drivers=lambda: (),
        )
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(provider.run)
        yield provider
        nursery.cancel_scope.cancel()


async def is_disk_pressure(root: Path) -> bool:
    """True if the node is under disk pressure with the defaults of the configuration."""
    async with statistics(root) as provider, trio.open_nursery() as nursery:
        watch = PressureWatch(
            thresholds=configured_thresholds(KubeletConfiguration()),
            transition_seconds=PERIOD_SECONDS,
            read=provider.node_since,
            journal=Journal(SystemClock()),
        )
        await nursery.start(watch.run)
        nursery.cancel_scope.cancel()
    pressures = watch.current()
    assert pressures is not None
    return pressures.disk


@pytest.mark.parametrize("full", [True, False])
async def test_a_full_disk_is_disk_pressure_by_default(full: bool, small_disk: Path) -> None:
    (small_disk / "data").write_bytes(bytes((10 if full else 5) * MI - 4096))
    assert await is_disk_pressure(small_disk) is full


@pytest.mark.parametrize("files", [97, 50])
async def test_a_disk_without_inodes_is_disk_pressure_by_default(
    files: int, small_disk: Path
) -> None:
    for number in range(files):
        (small_disk / str(number)).touch()
    assert await is_disk_pressure(small_disk) is (files == 97)


async def test_the_statistics_of_this_machine_have_its_signals(tmp_path: Path) -> None:
    async with statistics(tmp_path) as provider:
        found = observations(await provider.node_since(trio.current_time()), 0)
    memory = found.signals[Signal.MEMORY]
    told = meminfo(await trio.Path("/proc/meminfo").read_bytes())
    # More than what is free, and not far from what the kernel takes for available.
    assert told["MemFree"] // 2 < memory.available < memory.capacity == told["MemTotal"]
    for signal in (Signal.PIDS, Signal.NODE_DISK):
        assert 0 < found.signals[signal].available < found.signals[signal].capacity
