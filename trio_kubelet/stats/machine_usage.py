"""The use of the machine as a whole: by its root cgroup, and by /proc where that counts nothing.

The root cgroup of v2 has no memory of its own, and some machines have no cgroups at all.
Pure, but for the reader that it is given.
"""

import re
from collections.abc import Callable, Mapping

from attrs import evolve

from trio_kubelet.stats.kernel_text import key_values, meminfo, pressure
from trio_kubelet.stats.values import CpuUsage, MemoryUsage, PsiStats, SwapUsage, Usage

Texts = Callable[[str], bytes | None]
"""Reads a file of the machine, such as `proc/stat`; None if it cannot be read."""

_TICK_NS = 10_000_000
_CPU_LINE = re.compile(rb"^cpu +(\d{1,18}(?: \d{1,18}){7})", re.MULTILINE)
_IDLE, _WAITING = 3, 4
_SYSTEM = (2, 5, 6)


def machine_usage(root: Usage | None, now_ns: int, texts: Texts) -> Usage:
    """The use of the machine; `root` is that of its root cgroup."""
    memory = meminfo(texts("proc/meminfo"))
    usage = root or Usage(time_ns=now_ns)
    return evolve(
        usage,
        cpu=usage.cpu or cpu_usage(texts("proc/stat")),
        memory=usage.memory or memory_usage(memory, key_values(texts("proc/vmstat"))),
        swap=swap_usage(memory),
        pressures=PsiStats(
            cpu=pressure(texts("proc/pressure/cpu")),
            memory=pressure(texts("proc/pressure/memory")),
            io=pressure(texts("proc/pressure/io")),
        ),
    )


def cpu_usage(stat: bytes | None) -> CpuUsage | None:
    """CPU time of all tasks by /proc/stat, where time is idle or it is somebody's."""
    found = _CPU_LINE.search(stat or b"")
    if found is None:
        return None
    ticks = [int(word) for word in found[1].split()]
    busy = sum(ticks) - ticks[_IDLE] - ticks[_WAITING]
    system = sum(ticks[each] for each in _SYSTEM)
    return CpuUsage(
        total_ns=busy * _TICK_NS,
        user_ns=(ticks[0] + ticks[1]) * _TICK_NS,
        system_ns=system * _TICK_NS,
    )


def memory_usage(memory: Mapping[str, int], vmstat: Mapping[bytes, int]) -> MemoryUsage | None:
    """Memory that is not free, page cache included, as cgroups count it."""
    if "MemTotal" not in memory or "MemFree" not in memory:
        return None
    used = max(0, memory["MemTotal"] - memory["MemFree"])
    return MemoryUsage(
        usage=used,
        working_set=max(0, used - memory.get("Inactive(file)", 0)),
        rss=memory.get("AnonPages"),
        page_faults=vmstat.get(b"pgfault"),
        major_page_faults=vmstat.get(b"pgmajfault"),
    )


def swap_usage(memory: Mapping[str, int]) -> SwapUsage | None:
    """Swap of the machine, which may be none."""
    total = memory.get("SwapTotal")
    if total is None:
        return None
    return SwapUsage(usage=max(0, total - memory.get("SwapFree", 0)), limit=total)
