"""The use of a cgroup by its files, on v1 and on v2. Pure: texts in, a value out.

Versions differ in files, units and words, and on v1 a parent's figures are those with `total_`.
What is not read, or is not there, is None.
"""

from collections.abc import Callable, Mapping

from trio_kubelet.stats.disk_io import io_v1, io_v2
from trio_kubelet.stats.kernel_text import key_values, limit_bytes, number, pressure
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
    return Usage(
        time_ns=now_ns,
        cpu=_cpu(
            _times(cpu.get(b"usage_usec"), 1000),
            _times(cpu.get(b"user_usec"), 1000),
            _times(cpu.get(b"system_usec"), 1000),
        ),
        memory=_memory_v2(current, stat, files("memory", "memory.max")),
        swap=None if swap is None else SwapUsage(usage=swap, limit=_swap_limit_v2(files)),
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


def _swap_limit_v2(files: Files) -> int | None:
    return limit_bytes(files("memory", "memory.swap.max"))


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
