"""The files of a cgroup and what they say: one table for v1, one for v2.

Pure: from a `CgroupConfig` to the files and texts to write, in the order in which the kernel
takes them (the period before the quota that must fit it).
"""

from collections.abc import Iterator

from attrs import frozen

from trio_kubelet.resources.cgroup_config import CgroupConfig, cpu_weight

_NO_LIMIT = "max"
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


@frozen
class CgroupFile:
    """One file to write: which controller it belongs to, its name and its text.

    Not every kernel has a file that `may_be_missing`.
    """

    controller: str
    name: str
    text: str
    may_be_missing: bool = False


def files_v1(config: CgroupConfig) -> Iterator[CgroupFile]:
    """Yield what to write into the hierarchies of cgroup v1."""
    if config.cpu_shares is not None:
        yield CgroupFile("cpu", "cpu.shares", str(config.cpu_shares))
    if config.cpu_period_us is not None:
        yield CgroupFile("cpu", "cpu.cfs_period_us", str(config.cpu_period_us))
    if config.cpu_quota_us is not None:
        yield CgroupFile("cpu", "cpu.cfs_quota_us", str(config.cpu_quota_us or -1))
    if config.memory_limit_bytes is not None:
        yield CgroupFile("memory", "memory.limit_in_bytes", str(config.memory_limit_bytes))
    if config.pids_limit is not None:
        yield CgroupFile("pids", "pids.max", str(config.pids_limit))
    for size, limit in config.hugepage_limits.items():
        yield from _hugepage_files(size, "limit_in_bytes", limit)


def files_v2(config: CgroupConfig) -> Iterator[CgroupFile]:
    """Yield what to write into the one hierarchy of cgroup v2."""
    if config.cpu_shares is not None:
        yield CgroupFile("cpu", "cpu.weight", str(cpu_weight(config.cpu_shares)))
    if config.cpu_quota_us is not None:
        quota = str(config.cpu_quota_us) if config.cpu_quota_us > 0 else _NO_LIMIT
        period = "" if config.cpu_period_us is None else f" {config.cpu_period_us}"
        yield CgroupFile("cpu", "cpu.max", quota + period)
    if config.memory_limit_bytes is not None:
        yield CgroupFile("memory", "memory.max", str(config.memory_limit_bytes))
    if config.memory_min_bytes is not None:
        yield CgroupFile("memory", "memory.min", str(config.memory_min_bytes))
    if config.memory_low_bytes is not None:
        yield CgroupFile("memory", "memory.low", str(config.memory_low_bytes))
    if config.pids_limit is not None:
        yield CgroupFile("pids", "pids.max", str(config.pids_limit))
    for size, limit in config.hugepage_limits.items():
        yield from _hugepage_files(size, "max", limit)


def _hugepage_files(size: int, name: str, limit: int) -> Iterator[CgroupFile]:
    """Yield the limits of pages that are used and, since Linux 5.7, of those that are reserved.

    Without the second one a process may map more than its limit, and is killed when it uses it.
    """
    yield CgroupFile("hugetlb", f"hugetlb.{page_size(size)}.{name}", str(limit))
    reserved = f"hugetlb.{page_size(size)}.rsvd.{name}"
    yield CgroupFile("hugetlb", reserved, str(limit), may_be_missing=True)


def page_size(size_bytes: int) -> str:
    """Return a size of huge pages as the kernel names it in files: `2MB`, `1GB`."""
    unit, name = next((u, n) for u, n in _UNITS if size_bytes >= u or u == _UNITS[-1][0])
    return f"{size_bytes // unit}{name}"
