"""The use of a cgroup by its files, on v1 and on v2, and of the machine as a whole. Pure.

Versions differ in files, units and words, and on v1 a parent's figures are those with `total_`.
What is not read, or is not there, is None. The machine's use is that of its root cgroup, and by
/proc where that counts nothing: the root cgroup of v2 has no memory of its own, and some machines
have no cgroups at all.
"""

import re
from collections.abc import Callable, Mapping

from attrs import evolve

from trio_kubelet.stats.kernel_text import (
    io_v1,
    io_v2,
    key_values,
    limit_bytes,
    meminfo,
    number,
    pressure,
)
from trio_kubelet.stats.values import (
    CgroupDetails,
    CpuUsage,
    MemoryUsage,
    PsiStats,
    SwapUsage,
    Usage,
)

Files = Callable[[str, str], bytes | None]
"""Reads a file by its controller and name; None if it is not there."""

NO_DETAILS = CgroupDetails()
_TICK_NS = 10_000_000
"""USER_HZ is 100 on every architecture that Linux shows to users."""

_SCHEDULER_SHARES = (2, 262_142, 9_999)
"""The least `cpu.shares`, and the spans of shares and weights: how cAdvisor turns one into the
other."""

Texts = Callable[[str], bytes | None]
"""Reads a file of the machine, such as `proc/stat`; None if it cannot be read."""

_TICK_NS = 10_000_000
_CPU_LINE = re.compile(rb"^cpu +(\d{1,18}(?: \d{1,18}){7})", re.MULTILINE)
_IDLE, _WAITING = 3, 4
_SYSTEM = (2, 5, 6)


def usage_v1(files: Files, now_ns: int, *, detailed: bool) -> Usage | None:
    """The use of a cgroup of v1; None if it is gone."""
    stat = key_values(files("memory", "memory.stat"))
    memory = _memory_v1(files, stat)
    total = number(files("cpuacct", "cpuacct.usage"))
    if memory is None and total is None:
        return None
    ticks = key_values(files("cpuacct", "cpuacct.stat")) if detailed else {}
    return Usage(
        time_ns=now_ns,
        cpu=_cpu(
            total, _times(ticks.get(b"user"), _TICK_NS), _times(ticks.get(b"system"), _TICK_NS)
        ),
        memory=memory,
        swap=_swap_v1(files, stat, memory),
        tasks=number(files("pids", "pids.current")),
        details=_details_v1(files, stat) if detailed else NO_DETAILS,
    )


def usage_v2(files: Files, now_ns: int, *, detailed: bool) -> Usage | None:
    """The use of a cgroup of v2; None if it is gone."""
    cpu = key_values(files("cpu", "cpu.stat"))
    current = number(files("memory", "memory.current"))
    if not cpu and current is None:
        return None
    stat = key_values(files("memory", "memory.stat"))
    swap = number(files("memory", "memory.swap.current"))
    swap_limit = limit_bytes(files("memory", "memory.swap.max")) if swap is not None else None
    return Usage(
        time_ns=now_ns,
        cpu=_cpu(
            _times(cpu.get(b"usage_usec"), 1000),
            _times(cpu.get(b"user_usec"), 1000),
            _times(cpu.get(b"system_usec"), 1000),
        ),
        memory=_memory_v2(current, stat, files("memory", "memory.max")),
        swap=None if swap is None else SwapUsage(usage=swap, limit=swap_limit),
        tasks=number(files("pids", "pids.current")),
        pressures=PsiStats(
            cpu=pressure(files("cpu", "cpu.pressure")),
            memory=pressure(files("memory", "memory.pressure")),
            io=pressure(files("io", "io.pressure")),
        ),
        details=_details_v2(files, cpu, stat) if detailed else NO_DETAILS,
    )


def _cpu(total_ns: int | None, user_ns: int | None, system_ns: int | None) -> CpuUsage | None:
    if total_ns is None:
        return None
    return CpuUsage(total_ns=total_ns, user_ns=user_ns, system_ns=system_ns)


def _times(count: int | None, unit: int) -> int | None:
    return None if count is None else count * unit


def _memory_v1(files: Files, stat: Mapping[bytes, int]) -> MemoryUsage | None:
    used = number(files("memory", "memory.usage_in_bytes"))
    if used is None:
        return None
    return MemoryUsage(
        usage=used,
        working_set=max(0, used - stat.get(b"total_inactive_file", 0)),
        rss=stat.get(b"total_rss"),
        page_faults=stat.get(b"total_pgfault"),
        major_page_faults=stat.get(b"total_pgmajfault"),
        limit=limit_bytes(files("memory", "memory.limit_in_bytes")),
    )


def _memory_v2(
    used: int | None, stat: Mapping[bytes, int], limit: bytes | None
) -> MemoryUsage | None:
    if used is None:
        return None
    return MemoryUsage(
        usage=used,
        working_set=max(0, used - stat.get(b"inactive_file", 0)),
        rss=stat.get(b"anon"),
        page_faults=stat.get(b"pgfault"),
        major_page_faults=stat.get(b"pgmajfault"),
        limit=limit_bytes(limit),
    )


def _swap_v1(
    files: Files, stat: Mapping[bytes, int], memory: MemoryUsage | None
) -> SwapUsage | None:
    """The limit of v1 is one of memory and swap together."""
    used = stat.get(b"total_swap")
    if used is None:
        return None
    both = limit_bytes(files("memory", "memory.memsw.limit_in_bytes"))
    limit = None
    if both is not None and memory is not None and memory.limit is not None:
        limit = max(0, both - memory.limit)
    return SwapUsage(usage=used, limit=limit)


def _details_v1(files: Files, stat: Mapping[bytes, int]) -> CgroupDetails:
    quota_us = number(files("cpu", "cpu.cfs_quota_us"))
    # Without a quota nothing is throttled, and one file less is read of most cgroups.
    cpu = key_values(files("cpu", "cpu.stat")) if quota_us is not None else {}
    return CgroupDetails(
        cache=stat.get(b"total_cache"),
        mapped_file=stat.get(b"total_mapped_file"),
        active_file=stat.get(b"total_active_file"),
        inactive_file=stat.get(b"total_inactive_file"),
        kernel=number(files("memory", "memory.kmem.usage_in_bytes")),
        peak=number(files("memory", "memory.max_usage_in_bytes")),
        limit_hits=number(files("memory", "memory.failcnt")),
        soft_limit=limit_bytes(files("memory", "memory.soft_limit_in_bytes")),
        own_page_faults=stat.get(b"pgfault"),
        own_major_page_faults=stat.get(b"pgmajfault"),
        cpu_shares=number(files("cpu", "cpu.shares")),
        cpu_period_us=number(files("cpu", "cpu.cfs_period_us")),
        cpu_quota_us=quota_us,
        periods=cpu.get(b"nr_periods"),
        throttled_periods=cpu.get(b"nr_throttled"),
        throttled_ns=cpu.get(b"throttled_time"),
        oom_kills=key_values(files("memory", "memory.oom_control")).get(b"oom_kill"),
        tasks_limit=number(files("pids", "pids.max")),
        io=io_v1(
            files("blkio", "blkio.throttle.io_service_bytes_recursive"),
            files("blkio", "blkio.throttle.io_serviced_recursive"),
        ),
    )


def _details_v2(files: Files, cpu: Mapping[bytes, int], stat: Mapping[bytes, int]) -> CgroupDetails:
    events = key_values(files("memory", "memory.events"))
    quota, _, period = (files("cpu", "cpu.max") or b"").strip().partition(b" ")
    return CgroupDetails(
        cache=stat.get(b"file"),
        mapped_file=stat.get(b"file_mapped"),
        active_file=stat.get(b"active_file"),
        inactive_file=stat.get(b"inactive_file"),
        kernel=stat.get(b"kernel"),
        peak=number(files("memory", "memory.peak")),
        limit_hits=events.get(b"max"),
        soft_limit=limit_bytes(files("memory", "memory.low")),
        own_page_faults=stat.get(b"pgfault"),
        own_major_page_faults=stat.get(b"pgmajfault"),
        cpu_shares=_shares(number(files("cpu", "cpu.weight"))),
        cpu_period_us=number(period),
        cpu_quota_us=number(quota),
        periods=cpu.get(b"nr_periods"),
        throttled_periods=cpu.get(b"nr_throttled"),
        throttled_ns=_times(cpu.get(b"throttled_usec"), 1000),
        oom_kills=events.get(b"oom_kill"),
        tasks_limit=number(files("pids", "pids.max")),
        io=io_v2(files("io", "io.stat")),
    )


def _shares(weight: int | None) -> int | None:
    if not weight:
        return None
    least, shares, weights = _SCHEDULER_SHARES
    return least + (weight - 1) * shares // weights


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
