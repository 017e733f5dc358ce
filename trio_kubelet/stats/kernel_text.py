"""Reads the kernel's files about cgroups, memory, pressure, disks and networks. Pure.

Any bytes may come: what is no such file gives None or nothing, never an error. The files of
cgroups are one of a few forms: a number or `max`, lines of a key and a number, pressure lines.
Input and output of the machine's disks are in /proc/diskstats, those of a cgroup in `io.stat` on
v2, and on v1 in two files of the controller blkio.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from trio_kubelet.stats.values import CgroupIo, DiskIo, Interface, PsiLine, PsiResource

_LONGEST_NUMBER: Final = 20
_NUMBER: Final = re.compile(rb"\d{1,20}")
_PRESSURE: Final = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d{1,2}) avg60=(\d{1,3}\.\d{1,2}) avg300=(\d{1,3}\.\d{1,2})"
    rb" total=(\d{1,20})$",
    re.MULTILINE,
)
_KILOBYTES: Final = re.compile(rb"^([A-Za-z0-9_()]+):\s+(\d{1,17})(?: kB)?$", re.MULTILINE)
_ZERO_LINE: Final = PsiLine(avg10=0.0, avg60=0.0, avg300=0.0, total_us=0)
_NO_LIMIT_BYTES: Final = 1 << 60
"""Memory limits from here on are cgroup v1's way to say that there is none."""

_COLUMNS: Final = 16
"""Of /proc/net/dev, after the interface's name: eight received, eight transmitted."""

_IGNORED_INTERFACES: Final = ("lo", "veth", "docker", "nerdctl")

_DEVICE: Final = rb"(\d{1,9}:\d{1,9})"
_BY_OPERATION: Final = re.compile(rb"^%b (Read|Write) (\d{1,20})$" % _DEVICE, re.MULTILINE)
_IO_STAT: Final = re.compile(
    rb"^%b rbytes=(\d{1,20}) wbytes=(\d{1,20}) rios=(\d{1,20}) wios=(\d{1,20})\b" % _DEVICE,
    re.MULTILINE,
)
_COUNTS: Final = 11
"""Of a line of /proc/diskstats, after the device's numbers and its name."""


def number(text: bytes | None) -> int | None:
    """The number that a file consists of; None for `max` and for anything else."""
    text = text.strip() if text is not None else b""
    return int(text) if text.isdigit() and len(text) <= _LONGEST_NUMBER else None


def limit_bytes(text: bytes | None) -> int | None:
    """A limit of memory; None if there is none."""
    limit = number(text)
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def key_values(text: bytes | None) -> Mapping[bytes, int]:
    """Lines of a key and a number; others are left out."""
    words = text.split() if text else []
    numbers = words[1::2]
    # Nearly always all lines are like that, and this takes a fifth of the time.
    if (
        len(words) % 2 == 0
        and b"".join(numbers).isdigit()
        and max(map(len, numbers)) <= _LONGEST_NUMBER
    ):
        return dict(zip(words[::2], map(int, numbers), strict=True))
    found: dict[bytes, int] = {}
    for line in (text or b"").splitlines():
        key, _, value = line.strip().partition(b" ")
        if key and _NUMBER.fullmatch(value):
            found[key] = int(value)
    return found


def pressure(text: bytes | None) -> PsiResource | None:
    """A pressure file. Old kernels have no line `full` for the CPU."""
    lines = {
        name: PsiLine(
            avg10=float(avg10), avg60=float(avg60), avg300=float(avg300), total_us=int(total)
        )
        for name, avg10, avg60, avg300, total in _PRESSURE.findall(text or b"")
    }
    if b"some" not in lines:
        return None
    return PsiResource(some=lines[b"some"], full=lines.get(b"full", _ZERO_LINE))


def meminfo(text: bytes | None) -> Mapping[str, int]:
    """The lines of /proc/meminfo, in bytes."""
    return {
        name.decode(): int(kilobytes) << 10 for name, kilobytes in _KILOBYTES.findall(text or b"")
    }


def boot_time_ns(stat: bytes | None) -> int:
    """The time of the machine's start by /proc/stat; 0 if it does not say."""
    found = re.search(rb"^btime (\d{1,12})$", stat or b"", re.MULTILINE)
    return int(found[1]) * 1_000_000_000 if found is not None else 0


def all_tasks(loadavg: bytes | None) -> int | None:
    """The number of tasks: the fourth word of /proc/loadavg is `running/all`."""
    found = re.match(rb"\S+ \S+ \S+ \d+/(\d{1,12}) ", loadavg or b"")
    return int(found[1]) if found is not None else None


def interfaces(net_dev: bytes | None) -> tuple[Interface, ...]:
    """The interfaces in /proc/net/dev, but those that only lead to pods or to nowhere."""
    found = []
    for line in (net_dev or b"").splitlines():
        name, colon, rest = line.partition(b":")
        columns = rest.split()
        if not colon or len(columns) != _COLUMNS or not all(map(_NUMBER.fullmatch, columns)):
            continue
        interface = name.strip().decode(errors="replace")
        if interface.startswith(_IGNORED_INTERFACES):
            continue
        numbers = [int(column) for column in columns]
        found.append(
            Interface(
                name=interface,
                rx_bytes=numbers[0],
                rx_packets=numbers[1],
                rx_errors=numbers[2],
                rx_dropped=numbers[3],
                tx_bytes=numbers[8],
                tx_packets=numbers[9],
                tx_errors=numbers[10],
                tx_dropped=numbers[11],
            )
        )
    return tuple(found)


def default_interface(route: bytes | None) -> str:
    """The interface of the default route with the least metric, by /proc/net/route, or "" ."""
    best: tuple[int, str] | None = None
    for line in (route or b"").splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or words[1] != b"00000000" or words[7] != b"00000000":
            continue
        candidate = (number(words[6]) or 0, words[0].decode(errors="replace"))
        if best is None or candidate < best:
            best = candidate
    return best[1] if best is not None else ""


def cgroups_of_process(text: bytes | None) -> Mapping[str, str]:
    """The cgroup of a process for each controller, by /proc/<pid>/cgroup; v2's has the key "" ."""
    found: dict[str, str] = {}
    for line in (text or b"").splitlines():
        parts = line.split(b":", 2)
        if len(parts) != 3 or not parts[2].startswith(b"/"):
            continue
        for controller in parts[1].split(b","):
            found[controller.decode(errors="replace")] = parts[2].decode(errors="surrogateescape")
    return found


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
