"""The limits that the kernel enforces on a cgroup now, and the order in which they change.

A container may not be allowed more than the cgroup of its pod: so a limit of the pod that grows is
changed before those of its containers, and one that shrinks after them. In which direction it goes
is read from the kernel: records may be from before an agent was killed.
"""

from collections.abc import Callable

from attrs import evolve, frozen

from trio_kubelet.resources.cgroup_config import NO_QUOTA, CgroupConfig

_NO_LIMIT = "max"
_DEFAULT_PERIOD_US = 100_000
"""The kernel's own."""
_NO_LIMIT_V1_BYTES = 1 << 62
"""Cgroup v1 shows a huge number, rounded down to pages, where there is no limit."""

ReadFile = Callable[[str, str], str]
"""Returns the text of a file of a cgroup, by controller and name. Raises OSError."""


@frozen(kw_only=True)
class CgroupLimits:
    """The limits of a cgroup; None is no limit. `memory_usage_bytes` is with the page cache."""

    memory_usage_bytes: int
    memory_limit_bytes: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int = _DEFAULT_PERIOD_US


def read_limits_v1(read: ReadFile) -> CgroupLimits:
    """Read the limits of a cgroup of v1. Raises OSError, or ValueError for text that is none."""
    memory = int(read("memory", "memory.limit_in_bytes"))
    quota = int(read("cpu", "cpu.cfs_quota_us"))
    return CgroupLimits(
        memory_usage_bytes=int(read("memory", "memory.usage_in_bytes")),
        memory_limit_bytes=memory if memory < _NO_LIMIT_V1_BYTES else None,
        cpu_quota_us=quota if quota > 0 else None,
        cpu_period_us=int(read("cpu", "cpu.cfs_period_us")),
    )


def read_limits_v2(read: ReadFile) -> CgroupLimits:
    """Read the limits of a cgroup of v2. Raises OSError, or ValueError for text that is none."""
    memory = read("memory", "memory.max").strip()
    quota, period = read("cpu", "cpu.max").split()
    return CgroupLimits(
        memory_usage_bytes=int(read("memory", "memory.current")),
        memory_limit_bytes=None if memory == _NO_LIMIT else int(memory),
        cpu_quota_us=None if quota == _NO_LIMIT else int(quota),
        cpu_period_us=int(period),
    )


def raised_limits(config: CgroupConfig, present: CgroupLimits) -> CgroupConfig:
    """Return the limits of `config` that are above the present ones.

    Shares of CPU are none: those of a pod and of its containers do not depend on each other.
    """
    raised = CgroupConfig()
    memory, memory_before = config.memory_limit_bytes, present.memory_limit_bytes
    if memory is not None and memory_before is not None and memory > memory_before:
        raised = evolve(raised, memory_limit_bytes=memory)
    if config.cpu_quota_us is not None and _raises_quota(config, present):
        raised = evolve(
            raised, cpu_quota_us=config.cpu_quota_us, cpu_period_us=config.cpu_period_us
        )
    return raised


def lowered_memory_limit(config: CgroupConfig, present: CgroupLimits) -> int | None:
    """Return the memory limit of `config` in bytes if it is below the present one, else None."""
    memory, before = config.memory_limit_bytes, present.memory_limit_bytes
    if memory is None or (before is not None and memory >= before):
        return None
    return memory


def _raises_quota(config: CgroupConfig, present: CgroupLimits) -> bool:
    quota = config.cpu_quota_us
    assert quota is not None, "the caller has looked"
    if present.cpu_quota_us is None:
        return False
    if quota in (0, NO_QUOTA):
        return True
    period = config.cpu_period_us or _DEFAULT_PERIOD_US
    return quota * present.cpu_period_us > present.cpu_quota_us * period
