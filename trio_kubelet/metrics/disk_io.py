"""Input and output of disks, as cAdvisor shows it. Pure.

The root has what the machine's disks count, other cgroups have what the kernel counts for them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from trio_kubelet.metrics.text import Family, Number, escaped
from trio_kubelet.stats.values import CgroupIo, DiskIo

SECTOR_BYTES = 512
"""The unit that the kernel counts in, whatever a disk's own sectors are."""

_MILLISECONDS = 1e3

Cgroup = tuple[str, int, Sequence[CgroupIo]]
"""Labels without braces, the time of the reading in milliseconds, and what was counted."""

_OF_DISKS: Sequence[tuple[str, str, str, Callable[[DiskIo], Number]]] = (
    ("container_fs_reads_total", "counter", "Reads.", lambda io: io.reads),
    ("container_fs_writes_total", "counter", "Writes.", lambda io: io.writes),
    (
        "container_fs_reads_bytes_total",
        "counter",
        "Bytes read.",
        lambda io: io.sectors_read * SECTOR_BYTES,
    ),
    (
        "container_fs_writes_bytes_total",
        "counter",
        "Bytes written.",
        lambda io: io.sectors_written * SECTOR_BYTES,
    ),
    (
        "container_fs_reads_merged_total",
        "counter",
        "Reads that became one with others.",
        lambda io: io.reads_merged,
    ),
    (
        "container_fs_writes_merged_total",
        "counter",
        "Writes that became one with others.",
        lambda io: io.writes_merged,
    ),
    ("container_fs_sector_reads_total", "counter", "Sectors read.", lambda io: io.sectors_read),
    (
        "container_fs_sector_writes_total",
        "counter",
        "Sectors written.",
        lambda io: io.sectors_written,
    ),
    (
        "container_fs_read_seconds_total",
        "counter",
        "Time of all reads.",
        lambda io: io.read_ms / _MILLISECONDS,
    ),
    (
        "container_fs_write_seconds_total",
        "counter",
        "Time of all writes.",
        lambda io: io.write_ms / _MILLISECONDS,
    ),
    ("container_fs_io_current", "gauge", "Reads and writes going on.", lambda io: io.in_flight),
    (
        "container_fs_io_time_seconds_total",
        "counter",
        "Time in which there was any of them.",
        lambda io: io.busy_ms / _MILLISECONDS,
    ),
    (
        "container_fs_io_time_weighted_seconds_total",
        "counter",
        "Time of all of them, those going on included.",
        lambda io: io.weighted_ms / _MILLISECONDS,
    ),
)
_OF_CGROUPS: Mapping[str, Callable[[CgroupIo], int]] = {
    "container_fs_reads_total": lambda io: io.reads,
    "container_fs_writes_total": lambda io: io.writes,
    "container_fs_reads_bytes_total": lambda io: io.read_bytes,
    "container_fs_writes_bytes_total": lambda io: io.written_bytes,
}


def disk_families(
    root: str, time_ms: int, disks: Sequence[DiskIo], cgroups: Iterable[Cgroup]
) -> Iterable[Family]:
    """All there is; `root` is the labels of the root's cgroup."""
    names = {disk.number: f'device="/dev/{escaped(disk.name)}"' for disk in disks}
    rows = [
        (f"{{{labels},{names.get(io.number, _numbered(io))}}}", at, io)
        for labels, at, counted in cgroups
        for io in counted
    ]
    for name, kind, words, of_disk in _OF_DISKS:
        family = Family(name, kind, words)
        for disk in disks:
            family.add(f"{{{root},{names[disk.number]}}}", of_disk(disk), time_ms)
        of_cgroup = _OF_CGROUPS.get(name)
        if of_cgroup is not None:
            for labels, at, io in rows:
                family.add(labels, of_cgroup(io), at)
        yield family


def _numbered(io: CgroupIo) -> str:
    """A device that the machine does not list by a name."""
    return f'device="{io.number}"'
