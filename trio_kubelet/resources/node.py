"""The size of the machine: CPUs, memory, huge pages."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

_MEMINFO = Path("/proc/meminfo")
_HUGEPAGES = Path("/sys/kernel/mm/hugepages")
_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_SIZE = re.compile(r"hugepages-(\d+)kB")


@frozen(kw_only=True)
class MachineSize:
    """The machine's resources.

    `cpu_milli` is in millicores; `hugepages` maps page size to the amount set aside, in bytes.
    """

    cpu_milli: int
    memory_bytes: int
    hugepages: Mapping[int, int] = field(factory=dict)


def node_capacity(
    meminfo: Path = _MEMINFO, hugepages: Path = _HUGEPAGES, cpus: int | None = None
) -> MachineSize:
    """Read the machine's size; raises OSError or ValueError where the kernel does not tell."""
    total = _TOTAL.search(meminfo.read_text(errors="replace"))
    if total is None:
        raise ValueError(f"{meminfo} has no MemTotal")
    return MachineSize(
        cpu_milli=1000 * (cpus or os.cpu_count() or 1),
        memory_bytes=int(total[1]) << 10,
        hugepages=_hugepages(hugepages),
    )


def _hugepages(folder: Path) -> Mapping[int, int]:
    sizes: dict[int, int] = {}
    for each in sorted(folder.glob("hugepages-*kB")):
        matched = _SIZE.fullmatch(each.name)
        if matched is not None:
            size = int(matched[1]) << 10
            sizes[size] = size * int((each / "nr_hugepages").read_text())
    return sizes
