"""The values of cgroups: pure conversions from requests and limits to kernel values.

Values are in the terms of cgroup v1 (shares, quota and period), as in CRI; `cpu_weight` turns
shares into what v2 knows. `pod_cgroup_config` gives a pod's cgroup, `qos_cgroup_configs` those
of the QoS classes and of all pods.
"""

import math
from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Pod,
    PodQOSClass,
    Quantity,
)
from trio_kubelet.k8s.totals import container_limits
from trio_kubelet.resources.pod_resources import (
    pod_limits,
    pod_requests,
    qos_class,
)
from trio_kubelet.resources.qos_memory import (
    MemoryReserve,
    class_limits,
    class_protections,
    memory_requests,
    pod_protection,
    protects_memory,
)

MIN_SHARES = 2
MAX_SHARES = 262_144
_SHARES_PER_CPU = 1024
_MILLI_PER_CPU = 1000
_MIN_QUOTA_US = 1000
NO_QUOTA = -1
_MAX_WEIGHT = 10_000
# QoS cgroups leave huge pages to their pods; the kernel rounds this down to its own maximum.
UNBOUNDED_HUGEPAGES_BYTES = 1 << 62


@frozen(kw_only=True)
class CgroupConfig:
    """The values of one cgroup; None leaves the kernel's value alone.

    `cpu_quota_us` -1 means no limit. `hugepage_limits` maps page size to limit, both in bytes.
    Memory up to `memory_min_bytes` the kernel does not take back, up to `memory_low_bytes` not
    before all else; only cgroup v2 has these two (KEP-2570).
    """

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None
    memory_min_bytes: int | None = None
    memory_low_bytes: int | None = None
    pids_limit: int | None = None
    hugepage_limits: Mapping[int, int] = field(factory=dict)


def milli_cpu_to_shares(milli_cpu: int) -> int:
    """CPU shares of a request in millicores, within the kernel's bounds."""
    return min(max(milli_cpu * _SHARES_PER_CPU // _MILLI_PER_CPU, MIN_SHARES), MAX_SHARES)


def quota_period_us(configuration: KubeletConfiguration) -> int:
    """The period of CFS quotas in microseconds (`cpuCFSQuotaPeriod`)."""
    return round(configuration.cpu_cfs_quota_period.total_seconds() * 1e6)


def milli_cpu_to_quota(milli_cpu: int, period_us: int) -> int:
    """CFS quota in microseconds of a limit in millicores; 0 for no limit, at least 1 ms else."""
    if milli_cpu == 0:
        return 0
    return max(milli_cpu * period_us // _MILLI_PER_CPU, _MIN_QUOTA_US)


def cpu_weight(shares: int) -> int:
    """`cpu.weight` of cgroup v2 for CPU shares of v1; 0 (unset) stays 0.

    The curve of current runtimes and kubelets (v1.35 and later): it maps the smallest value to
    the smallest, the largest to the largest and the default to the default (1024 to 100).
    """
    if shares == 0:
        return 0
    if shares <= MIN_SHARES:
        return 1
    if shares >= MAX_SHARES:
        return _MAX_WEIGHT
    log = math.log2(shares)
    return math.ceil(math.pow(10, (log * log + 125 * log) / 612.0 - 7.0 / 34.0))


def pod_cgroup_config(
    pod: Pod, configuration: KubeletConfiguration, hugepage_sizes: tuple[int, ...] = ()
) -> CgroupConfig:
    """Return the values of a pod's cgroup; `hugepage_sizes` are those of the node, in bytes.

    CPU quota and memory limit are set only where every container (or the pod itself) has such a
    limit: a sum that leaves one container out would throttle it. Huge pages are limited to the
    request, for each size of the node, because they cannot be overcommitted.
    """
    requests, limits, qos = pod_requests(pod), pod_limits(pod), qos_class(pod)
    pids_limit = configuration.pod_pids_limit if configuration.pod_pids_limit > 0 else None
    hugepages = hugepage_limits(requests, hugepage_sizes)
    if qos is PodQOSClass.BEST_EFFORT:
        return CgroupConfig(cpu_shares=MIN_SHARES, pids_limit=pids_limit, hugepage_limits=hugepages)
    period_us = quota_period_us(configuration)
    quota_us = NO_QUOTA
    if configuration.cpu_cfs_quota:
        quota_us = milli_cpu_to_quota(_milli(limits, "cpu"), period_us)
    cpu_limited = qos is PodQOSClass.GUARANTEED or _limited_everywhere(pod, "cpu")
    memory_limited = qos is PodQOSClass.GUARANTEED or _limited_everywhere(pod, "memory")
    protection = pod_protection(pod) if protects_memory(configuration) else None
    return CgroupConfig(
        cpu_shares=milli_cpu_to_shares(_milli(requests, "cpu")),
        cpu_quota_us=quota_us if cpu_limited else None,
        cpu_period_us=period_us if cpu_limited else None,
        memory_limit_bytes=limits["memory"].value if memory_limited else None,
        memory_min_bytes=protection.min_bytes if protection is not None else None,
        memory_low_bytes=protection.low_bytes if protection is not None else None,
        pids_limit=pids_limit,
        hugepage_limits=hugepages,
    )


def qos_cgroup_configs(
    pods: Iterable[Pod],
    configuration: KubeletConfiguration,
    hugepage_sizes: tuple[int, ...] = (),
    reserve: MemoryReserve | None = None,
) -> Mapping[PodQOSClass, CgroupConfig]:
    """Return the values of the classes' cgroups for the pods active now.

    Burstable pods together weigh what they ask for; the besteffort ones weigh next to nothing.
    Guaranteed pods have the cgroup of all pods, whose other values are not set here.
    """
    pods = tuple(pods)
    burstable_milli = sum(
        _milli(pod_requests(pod), "cpu") for pod in pods if qos_class(pod) is PodQOSClass.BURSTABLE
    )
    keeps_apart = reserve is not None or protects_memory(configuration)
    requests = memory_requests(pods if keeps_apart else ())
    limits = class_limits(requests, reserve) if reserve is not None else {}
    protections = class_protections(requests) if protects_memory(configuration) else {}
    unbounded = dict.fromkeys(hugepage_sizes, UNBOUNDED_HUGEPAGES_BYTES)
    shares = {
        PodQOSClass.GUARANTEED: None,
        PodQOSClass.BURSTABLE: milli_cpu_to_shares(burstable_milli),
        PodQOSClass.BEST_EFFORT: MIN_SHARES,
    }
    return {
        qos: CgroupConfig(
            cpu_shares=shares[qos],
            memory_limit_bytes=limits.get(qos),
            memory_min_bytes=protections[qos].min_bytes if protections else None,
            memory_low_bytes=protections[qos].low_bytes if protections else None,
            hugepage_limits={} if qos is PodQOSClass.GUARANTEED else unbounded,
        )
        for qos in PodQOSClass
    }


def part_of(config: CgroupConfig, resource: str) -> CgroupConfig:
    """Return the values that follow from one resource, `cpu` or `memory`."""
    if resource == "cpu":
        return CgroupConfig(
            cpu_shares=config.cpu_shares,
            cpu_quota_us=config.cpu_quota_us,
            cpu_period_us=config.cpu_period_us,
        )
    return CgroupConfig(
        memory_limit_bytes=config.memory_limit_bytes,
        memory_min_bytes=config.memory_min_bytes,
        memory_low_bytes=config.memory_low_bytes,
    )


def with_protection(config: CgroupConfig) -> CgroupConfig:
    """Return the values with no protection of memory where `config` leaves it alone.

    A cgroup may have one from when the configuration asked for it.
    """
    return evolve(
        config,
        memory_min_bytes=config.memory_min_bytes or 0,
        memory_low_bytes=config.memory_low_bytes or 0,
    )


def protection_alone(config: CgroupConfig) -> CgroupConfig:
    """Return the protection of memory alone, with none where `config` leaves it alone."""
    protection = CgroupConfig(
        memory_min_bytes=config.memory_min_bytes, memory_low_bytes=config.memory_low_bytes
    )
    return with_protection(protection)


def hugepage_limits(
    resources: Mapping[str, Quantity], node_sizes: Iterable[int]
) -> Mapping[int, int]:
    """Bytes of huge pages allowed for each page size in bytes; 0 for sizes not asked for."""
    limits = dict.fromkeys(node_sizes, 0)
    for name, quantity in resources.items():
        if name.startswith(HUGEPAGES_PREFIX):
            size = Quantity(name.removeprefix(HUGEPAGES_PREFIX)).value
            limits[size] = limits.get(size, 0) + quantity.value
    return limits


def _milli(resources: Mapping[str, Quantity], name: str) -> int:
    return resources[name].milli_value if name in resources else 0


def _limited_everywhere(pod: Pod, name: str) -> bool:
    if pod.spec.resources is not None and _has_limit(pod.spec.resources.limits, name):
        return True
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return all(_has_limit(container_limits(container), name) for container in containers)


def _has_limit(limits: Mapping[str, Quantity], name: str) -> bool:
    return name in limits and limits[name].milli_value != 0
