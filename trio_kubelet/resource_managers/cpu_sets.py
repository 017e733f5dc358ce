"""Sets of CPUs, and the lists in which the kernel, CRI and state files write them: `0-2,7`."""

from collections.abc import Iterable

CpuSet = frozenset[int]

HIGHEST_CPU = (1 << 16) - 1
"""More than any kernel counts; a list with larger numbers is none."""


def parsed_cpus(cpu_list: str) -> CpuSet:
    """Return the CPUs of a list. Raises ValueError for what is none."""
    cpus: set[int] = set()
    listed = 0
    for part in cpu_list.strip().split(",") if cpu_list.strip() else ():
        first, dash, last = part.partition("-")
        start = _number(first)
        stop = _number(last) if dash else start
        if stop < start:
            raise ValueError(f'"{part}" is no range of CPUs')
        listed += stop + 1 - start
        if listed > HIGHEST_CPU + 1:
            raise ValueError("it lists more CPUs than any machine has")
        cpus.update(range(start, stop + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """Return the list of these CPUs, in rising order, neighbours as ranges."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= HIGHEST_CPU):
        raise ValueError(f'"{text}" is no number of a CPU')
    return int(text)
