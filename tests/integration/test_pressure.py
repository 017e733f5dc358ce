"""A disk that is really full, and the defaults of the configuration."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from trio_kubelet.config.eviction import Signal
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.node.pressure_monitor import PERIOD_SECONDS, PressureMonitor
from trio_kubelet.node.signals import MeasurementSources, measure
from trio_kubelet.node.thresholds import configured_thresholds
from trio_kubelet.resources import CgroupTree
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
    """A file system of 10 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("tmpfs", folder, "tmpfs", options="size=10m")
    try:
        yield folder
    finally:
        unmount(folder)


@pytest.mark.parametrize("full", [True, False])
async def test_a_full_disk_is_disk_pressure_by_default(full: bool, small_disk: Path) -> None:
    (small_disk / "data").write_bytes(bytes((10 if full else 5) * MI - 4096))
    monitor = PressureMonitor(
        thresholds=configured_thresholds(KubeletConfiguration()),
        transition_seconds=PERIOD_SECONDS,
        client=None,
        sources=MeasurementSources(root_folder=small_disk),
        journal=Journal(SystemClock()),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(monitor.run)
        nursery.cancel_scope.cancel()
    pressures = monitor.current()
    assert pressures is not None
    assert pressures.disk is full


def test_the_cgroups_of_this_machine_tell_of_its_memory(tmp_path: Path) -> None:
    tree = CgroupTree.find(mount_points())
    found = measure(MeasurementSources(root_folder=tmp_path, tree=tree), None)
    assert found.problems == {}
    memory = found.signals[Signal.MEMORY]
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    told = {words[0]: int(words[1]) << 10 for words in lines}
    # More than what is free, and not far from what the kernel takes for available.
    assert told["MemFree:"] // 2 < memory.available < memory.capacity == told["MemTotal:"]
