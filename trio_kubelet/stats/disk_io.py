"""Reads what the kernel counts of the input and output of disks. Pure: bytes to values.

The machine's are in /proc/diskstats. Those of a cgroup are in `io.stat` on v2, and on v1 in two
files of the controller blkio. Lines that are none of these are left out.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from trio_kubelet.stats.values import CgroupIo, DiskIo

_DEVICE: Final = rb"(\d{1,9}:\d{1,9})"
_BY_OPERATION: Final = re.compile(rb"^%b (Read|Write) (\d{1,20})$" % _DEVICE, re.MULTILINE)
_IO_STAT: Final = re.compile(
    rb"^%b rbytes=(\d{1,20}) wbytes=(\d{1,20}) rios=(\d{1,20}) wios=(\d{1,20})\b" % _DEVICE,
    re.MULTILINE,
)
_COUNTS: Final = 11
"""Of a line of /proc/diskstats, after the device's numbers and its name."""


def disks(diskstats: bytes | None) -> tuple[DiskIo, ...]:
    """The disks of the machine that were ever read or written."""
    found = []
    for line in (diskstats or b"").splitlines():
        words = line.split()
        numbers = words[:2] + words[3 : 3 + _COUNTS]
        if len(numbers) < 2 + _COUNTS or not all(w.isdigit() and len(w) <= 20 for w in numbers):
            continue
        major, minor, *counts = map(int, numbers)
        if any(counts):
            name = words[2].decode(errors="replace")
            found.append(DiskIo(f"{major}:{minor}", name, *counts))
    return tuple(found)


def io_v2(stat: bytes | None) -> tuple[CgroupIo, ...]:
    """The bytes that a cgroup of v2 has read and written, by device."""
    return tuple(
        CgroupIo(device.decode(), *map(int, counts))
        for device, *counts in _IO_STAT.findall(stat or b"")
    )


def io_v1(service_bytes: bytes | None, serviced: bytes | None) -> tuple[CgroupIo, ...]:
    """The bytes that a cgroup of v1 has read and written, by device."""
    moved, done = _by_operation(service_bytes), _by_operation(serviced)
    devices = dict.fromkeys(device for device, _ in (*moved, *done))
    return tuple(
        CgroupIo(
            device.decode(),
            *(counts.get((device, way), 0) for counts in (moved, done) for way in _WAYS),
        )
        for device in devices
    )


_WAYS: Final = (b"Read", b"Write")


def _by_operation(text: bytes | None) -> Mapping[tuple[bytes, bytes], int]:
    found: Iterable[tuple[bytes, bytes, bytes]] = _BY_OPERATION.findall(text or b"")
    return {(device, way): int(count) for device, way, count in found}
