"""What is measured of a node, from files like those of the kernel and from real file systems."""

import os
from pathlib import Path

import pytest

from trio_kubelet.config.eviction import Signal
from trio_kubelet.node.pressure import Measured
from trio_kubelet.node.signals import MeasurementSources, measure
from trio_kubelet.resources import CgroupTree

KI = 1 << 10
MEMINFO = """\
MemTotal:        1000 kB
MemFree:          300 kB
Inactive(file):   200 kB
"""


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A machine with 1000 KiB of memory, 300 KiB of it free, and 90 of 100 process ids."""
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__loadavg="0.10 0.20 0.30 1/10 4711\n",
        proc__sys__kernel__pid_max="100\n",
    )
    (tmp_path / "proc/sys/kernel/threads-max").write_text("5000\n")
    return tmp_path


def measured(
    host: Path, tree: CgroupTree | None = None, images: Path | None = None
) -> tuple[dict[Signal, Measured], set[str]]:
    sources = MeasurementSources(
        root_folder=host, host=host, tree=tree, pods_cgroups=("/a.slice", "/kubepods")
    )
    found = measure(sources, images)
    return dict(found.signals), set(found.problems)


def cgroups(host: Path, version: int) -> CgroupTree:
    return CgroupTree(version=version, hierarchies={"memory": host / "memory"})


def test_without_cgroups_memory_is_available_that_is_free_or_inactive_cache(host: Path) -> None:
    signals, problems = measured(host)
    assert signals[Signal.MEMORY] == Measured(available=500 * KI, capacity=1000 * KI)
    assert Signal.ALLOCATABLE_MEMORY not in signals
    assert problems == set()


def test_on_cgroup_v1_the_root_cgroup_counts_what_is_used(host: Path) -> None:
    (host / "memory").mkdir()
    (host / "memory/memory.usage_in_bytes").write_text(str(600 * KI))
    (host / "memory/memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {100 * KI}\n")
    signals, _ = measured(host, cgroups(host, 1))
    assert signals[Signal.MEMORY] == Measured(available=500 * KI, capacity=1000 * KI)


def test_on_cgroup_v2_the_root_counts_nothing_but_its_cache(host: Path) -> None:
    (host / "memory").mkdir()
    (host / "memory/memory.stat").write_text(f"anon 5\ninactive_file {50 * KI}\n")
    signals, _ = measured(host, cgroups(host, 2))
    assert signals[Signal.MEMORY] == Measured(available=350 * KI, capacity=1000 * KI)


@pytest.mark.parametrize(
    ("version", "limit", "usage", "cache"),
    [
        (1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        (2, "memory.max", "memory.current", "inactive_file"),
    ],
)
def test_the_memory_of_pods_is_that_of_their_cgroup_where_it_has_a_limit(
    version: int, limit: str, usage: str, cache: str, host: Path
) -> None:
    folder = host / "memory/kubepods"
    folder.mkdir(parents=True)
    (folder / usage).write_text(f"{600 * KI}\n")
    (folder / "memory.stat").write_text(f"{cache} {100 * KI}\n")
    (folder / limit).write_text(f"{800 * KI}\n")
    signals, _ = measured(host, cgroups(host, version))
    assert signals[Signal.ALLOCATABLE_MEMORY] == Measured(available=300 * KI, capacity=800 * KI)
    (folder / limit).write_text("9223372036854771712\n" if version == 1 else "max\n")
    signals, _ = measured(host, cgroups(host, version))
    assert Signal.ALLOCATABLE_MEMORY not in signals


def test_process_ids_are_the_smaller_limit_less_the_tasks(host: Path) -> None:
    signals, _ = measured(host)
    assert signals[Signal.PIDS] == Measured(available=90, capacity=100)


def test_disks_are_what_their_file_systems_say(host: Path) -> None:
    signals, _ = measured(host, images=Path("/"))
    for space, inodes, folder in (
        (Signal.NODE_DISK, Signal.NODE_INODES, host),
        (Signal.IMAGE_DISK, Signal.IMAGE_INODES, Path("/")),
    ):
        found = os.statvfs(folder)
        assert signals[space].capacity == found.f_blocks * found.f_frsize
        assert 0 < signals[space].available <= found.f_bfree * found.f_frsize
        if found.f_files:
            assert signals[inodes].capacity == found.f_files


def test_what_cannot_be_measured_is_named_and_the_rest_is_measured(host: Path) -> None:
    (host / "proc/meminfo").write_text("MemTotal: a lot\n")
    (host / "proc/loadavg").write_text("")
    signals, problems = measured(host, images=host / "no/such/folder")
    assert set(signals) == {Signal.NODE_DISK, Signal.NODE_INODES}
    assert problems == {"memory", "process ids", "the disk of images"}


def test_this_machine_can_be_measured(tmp_path: Path) -> None:
    found = measure(MeasurementSources(root_folder=tmp_path), None)
    assert found.problems == {}
    for signal in (Signal.MEMORY, Signal.PIDS, Signal.NODE_DISK):
        assert 0 < found.signals[signal].available < found.signals[signal].capacity
