"""`/metrics/cadvisor`: cgroups and networks under the names that cAdvisor has made common. Pure.

A row is a cgroup: the root, those above the pods, those of pods, sandboxes and containers, and
those of agent and runtime. Each metric is one entry of a table that says what it takes of a row.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter

from attrs import field, frozen

from trio_kubelet.metrics.disk_io import disk_families
from trio_kubelet.metrics.text import Family, Number, escaped, exposition, inner_label_text
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.stats.values import (
    Interface,
    MemoryUsage,
    NetworkStats,
    PodStats,
    PsiStats,
    Stats,
    Usage,
)

_SECONDS = 1e9
_MICROSECONDS = 1e6
_LABELS = ("container", "id", "image", "name", "namespace", "pod")
_KNOWN_LABELS = 2048
"""Cgroups whose labels are kept as text: more than most nodes have."""


@frozen(kw_only=True)
class CgroupRow:
    """A cgroup, and how it is called. `labels` are without braces."""

    labels: str
    usage: Usage
    started_at_ns: int = 0
    network: NetworkStats | None = None
    time_ms: int = field(init=False)

    @time_ms.default
    def _time_ms(self) -> int:
        return self.usage.time_ns // 1_000_000


@frozen
class _Metric:
    """A metric with at most one sample for each cgroup; `extra` are labels of the metric's own."""

    name: str
    type: str
    help: str
    value: Callable[[Usage], Number | None]
    extra: str = ""


def _of_memory(take: Callable[[MemoryUsage], Number | None]) -> Callable[[Usage], Number | None]:
    return lambda usage: None if usage.memory is None else take(usage.memory)


def _of_details(name: str) -> Callable[[Usage], Number | None]:
    return attrgetter(f"details.{name}")


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / _SECONDS


def _stalled(take: Callable[[PsiStats], object], line: str) -> Callable[[Usage], Number | None]:
    def value(usage: Usage) -> Number | None:
        pressure = take(usage.pressures)
        if pressure is None:
            return None
        total: int = getattr(pressure, line).total_us
        return total / _MICROSECONDS

    return value


_METRICS = (
    _Metric(
        "container_cpu_usage_seconds_total",
        "counter",
        "CPU time.",
        lambda usage: None if usage.cpu is None else usage.cpu.total_ns / _SECONDS,
        'cpu="total"',
    ),
    _Metric(
        "container_cpu_user_seconds_total",
        "counter",
        "CPU time of programs.",
        lambda usage: None if usage.cpu is None else _seconds(usage.cpu.user_ns),
    ),
    _Metric(
        "container_cpu_system_seconds_total",
        "counter",
        "CPU time of the kernel for programs.",
        lambda usage: None if usage.cpu is None else _seconds(usage.cpu.system_ns),
    ),
    _Metric(
        "container_memory_usage_bytes",
        "gauge",
        "Memory in use, page cache included.",
        _of_memory(lambda memory: memory.usage),
    ),
    _Metric(
        "container_memory_working_set_bytes",
        "gauge",
        "Memory in use without the inactive page cache.",
        _of_memory(lambda memory: memory.working_set),
    ),
    _Metric(
        "container_memory_rss",
        "gauge",
        "Anonymous memory.",
        _of_memory(lambda memory: memory.rss),
    ),
    _Metric(
        "container_memory_cache",
        "gauge",
        "Page cache.",
        _of_details("cache"),
    ),
    _Metric(
        "container_memory_mapped_file",
        "gauge",
        "Files that are mapped into memory.",
        _of_details("mapped_file"),
    ),
    _Metric(
        "container_memory_total_active_file_bytes",
        "gauge",
        "Page cache that was used lately.",
        _of_details("active_file"),
    ),
    _Metric(
        "container_memory_total_inactive_file_bytes",
        "gauge",
        "Page cache that was not used lately.",
        _of_details("inactive_file"),
    ),
    _Metric(
        "container_memory_kernel_usage",
        "gauge",
        "Memory of the kernel.",
        _of_details("kernel"),
    ),
    _Metric(
        "container_memory_max_usage_bytes",
        "gauge",
        "The most memory that was in use.",
        _of_details("peak"),
    ),
    _Metric(
        "container_memory_failcnt",
        "counter",
        "How often the limit of memory was hit.",
        _of_details("limit_hits"),
    ),
    _Metric(
        "container_memory_swap",
        "gauge",
        "Swap in use.",
        lambda usage: None if usage.swap is None else usage.swap.usage,
    ),
    _Metric(
        "container_memory_failures_total",
        "counter",
        "Page faults.",
        _of_details("own_page_faults"),
        'failure_type="pgfault",scope="container"',
    ),
    _Metric(
        "container_memory_failures_total",
        "counter",
        "Page faults.",
        _of_details("own_major_page_faults"),
        'failure_type="pgmajfault",scope="container"',
    ),
    _Metric(
        "container_memory_failures_total",
        "counter",
        "Page faults.",
        _of_memory(lambda memory: memory.page_faults),
        'failure_type="pgfault",scope="hierarchy"',
    ),
    _Metric(
        "container_memory_failures_total",
        "counter",
        "Page faults.",
        _of_memory(lambda memory: memory.major_page_faults),
        'failure_type="pgmajfault",scope="hierarchy"',
    ),
    _Metric(
        "container_oom_events_total",
        "counter",
        "Processes that were killed for the limit of memory.",
        _of_details("oom_kills"),
    ),
    _Metric("container_threads", "gauge", "Tasks in the cgroup.", lambda usage: usage.tasks),
    _Metric(
        "container_threads_max",
        "gauge",
        "Tasks that the cgroup may have; 0 means no limit.",
        lambda usage: None if usage.tasks is None else usage.details.tasks_limit or 0,
    ),
    _Metric(
        "container_spec_cpu_shares",
        "gauge",
        "The weight of the cgroup, as CPU shares.",
        _of_details("cpu_shares"),
    ),
    _Metric(
        "container_spec_cpu_period",
        "gauge",
        "The period of the CPU quota in microseconds.",
        _of_details("cpu_period_us"),
    ),
    _Metric(
        "container_spec_cpu_quota",
        "gauge",
        "The CPU quota in microseconds.",
        _of_details("cpu_quota_us"),
    ),
    _Metric(
        "container_cpu_cfs_periods_total",
        "counter",
        "Periods of the CPU quota.",
        lambda usage: _with_quota(usage, usage.details.periods),
    ),
    _Metric(
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "Periods in which the CPU quota was used up.",
        lambda usage: _with_quota(usage, usage.details.throttled_periods),
    ),
    _Metric(
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Time that tasks had to wait because the CPU quota was used up.",
        lambda usage: _with_quota(usage, _seconds(usage.details.throttled_ns)),
    ),
    _Metric(
        "container_spec_memory_limit_bytes",
        "gauge",
        "The limit of memory; 0 means none.",
        _of_memory(lambda memory: memory.limit or 0),
    ),
    _Metric(
        "container_spec_memory_reservation_limit_bytes",
        "gauge",
        "The soft limit of memory; 0 means none.",
        lambda usage: usage.details.soft_limit or 0,
    ),
    _Metric(
        "container_spec_memory_swap_limit_bytes",
        "gauge",
        "The limit of swap; 0 means none, or no swap.",
        lambda usage: None if usage.swap is None else usage.swap.limit or 0,
    ),
    _Metric(
        "container_pressure_cpu_waiting_seconds_total",
        "counter",
        "Time in which some tasks waited for the CPU.",
        _stalled(lambda pressures: pressures.cpu, "some"),
    ),
    _Metric(
        "container_pressure_cpu_stalled_seconds_total",
        "counter",
        "Time in which all tasks waited for the CPU.",
        _stalled(lambda pressures: pressures.cpu, "full"),
    ),
    _Metric(
        "container_pressure_memory_waiting_seconds_total",
        "counter",
        "Time in which some tasks waited for memory.",
        _stalled(lambda pressures: pressures.memory, "some"),
    ),
    _Metric(
        "container_pressure_memory_stalled_seconds_total",
        "counter",
        "Time in which all tasks waited for memory.",
        _stalled(lambda pressures: pressures.memory, "full"),
    ),
    _Metric(
        "container_pressure_io_waiting_seconds_total",
        "counter",
        "Time in which some tasks waited for disks.",
        _stalled(lambda pressures: pressures.io, "some"),
    ),
    _Metric(
        "container_pressure_io_stalled_seconds_total",
        "counter",
        "Time in which all tasks waited for disks.",
        _stalled(lambda pressures: pressures.io, "full"),
    ),
)

_INTERFACE_METRICS: tuple[tuple[str, Callable[[Interface], int | None]], ...] = (
    ("container_network_receive_bytes_total", lambda each: each.rx_bytes),
    ("container_network_receive_packets_total", lambda each: each.rx_packets),
    ("container_network_receive_packets_dropped_total", lambda each: each.rx_dropped),
    ("container_network_receive_errors_total", lambda each: each.rx_errors),
    ("container_network_transmit_bytes_total", lambda each: each.tx_bytes),
    ("container_network_transmit_packets_total", lambda each: each.tx_packets),
    ("container_network_transmit_packets_dropped_total", lambda each: each.tx_dropped),
    ("container_network_transmit_errors_total", lambda each: each.tx_errors),
)


def _with_quota(usage: Usage, value: Number | None) -> Number | None:
    return value if usage.details.cpu_quota_us is not None else None


def cadvisor_metrics(stats: Stats, machine: MachineInfo) -> bytes:
    """The whole answer."""
    rows = tuple(_rows(stats))
    families: dict[str, Family] = {}
    for metric in _METRICS:
        family = families.setdefault(metric.name, Family(metric.name, metric.type, metric.help))
        _fill(family, metric, rows)
    return exposition(
        [
            *families.values(),
            *_times(rows),
            *_networks(rows),
            *_disks(stats, rows),
            *_machine(stats, machine),
        ]
    )


def _disks(stats: Stats, rows: Sequence[CgroupRow]) -> Iterable[Family]:
    """The root is the first row; what its cgroup counts is in the counts of disks."""
    root, *others = rows
    cgroups = [(row.labels, row.time_ms, row.usage.details.io) for row in others]
    return disk_families(root.labels, root.time_ms, stats.node.disks, cgroups)


def _fill(family: Family, metric: _Metric, rows: Iterable[CgroupRow]) -> None:
    begin, value_of, lines = f"{metric.name}{{", metric.value, family.lines
    extra = f",{metric.extra}" if metric.extra else ""
    for row in rows:
        value = value_of(row.usage)
        if value is not None:
            lines.append(f"{begin}{row.labels}{extra}}} {value!r} {row.time_ms}")


def _times(rows: Iterable[CgroupRow]) -> Iterable[Family]:
    seen = Family("container_last_seen", "gauge", "When the cgroup was read, in Unix time.")
    started = Family("container_start_time_seconds", "gauge", "When it began, in Unix time.")
    for row in rows:
        labels = f"{{{row.labels}}}"
        seen.add(labels, row.time_ms // 1000, row.time_ms)
        if row.started_at_ns:
            started.add(labels, row.started_at_ns / _SECONDS, row.time_ms)
    return seen, started


def _networks(rows: Iterable[CgroupRow]) -> Iterator[Family]:
    found = [
        (f'{{{row.labels},interface="{escaped(each.name)}"}}', each, row.network.time_ns)
        for row in rows
        if row.network is not None
        for each in row.network.interfaces
    ]
    for name, value_of in _INTERFACE_METRICS:
        way = "received" if "receive" in name else "sent"
        family = Family(name, "counter", f"What an interface has {way}.")
        for labels, interface, time_ns in found:
            value = value_of(interface)
            if value is not None:
                family.add(labels, value, time_ns // 1_000_000)
        yield family


def _rows(stats: Stats) -> Iterator[CgroupRow]:
    node = stats.node
    yield CgroupRow(
        labels=_labels(cgroup="/"),
        usage=node.usage,
        started_at_ns=node.booted_at_ns,
        network=node.network,
    )
    for path, usage in stats.cgroups.items():
        yield CgroupRow(labels=_labels(cgroup=path), usage=usage)
    for system in stats.system:
        if system.cgroup not in stats.cgroups:
            yield CgroupRow(
                labels=_labels(cgroup=system.cgroup),
                usage=system.usage,
                started_at_ns=system.started_at_ns,
            )
    for pod in stats.pods:
        yield from _pod_rows(pod)


def _pod_rows(pod: PodStats) -> Iterator[CgroupRow]:
    """The network is that of the sandbox, where that has a cgroup."""
    network, sandbox = pod.network, pod.sandbox
    if pod.cgroup:
        yield CgroupRow(
            labels=_labels(pod, cgroup=pod.cgroup),
            usage=pod.usage,
            started_at_ns=pod.started_at_ns,
            network=network if sandbox is None else None,
        )
    if sandbox is not None:
        yield CgroupRow(
            labels=_labels(pod, cgroup=sandbox.cgroup, name=sandbox.id),
            usage=sandbox.usage,
            started_at_ns=sandbox.started_at_ns,
            network=network,
        )
    for container in pod.containers:
        yield CgroupRow(
            labels=_labels(
                pod,
                cgroup=container.cgroup,
                container=container.name,
                image=container.image,
                name=container.id,
            ),
            usage=container.usage,
            started_at_ns=container.started_at_ns,
        )


def _labels(
    pod: PodStats | None = None,
    *,
    cgroup: str,
    container: str = "",
    image: str = "",
    name: str = "",
) -> str:
    namespace, pod_name = (pod.namespace, pod.name) if pod is not None else ("", "")
    return _label_text(container, cgroup, image, name, namespace, pod_name)


@lru_cache(maxsize=_KNOWN_LABELS)
def _label_text(*values: str) -> str:
    return inner_label_text(dict(zip(_LABELS, values, strict=True)))


def _machine(stats: Stats, machine: MachineInfo) -> Iterator[Family]:
    labels = inner_label_text(
        {
            "boot_id": machine.boot_id,
            "machine_id": machine.machine_id,
            "system_uuid": machine.system_uuid,
        }
    )
    for name, help_text, value in (
        ("machine_cpu_cores", "CPUs.", machine.size.cpu_milli // 1000),
        (
            "machine_cpu_physical_cores",
            "Cores, whose threads are the CPUs.",
            machine.topology.cores,
        ),
        ("machine_cpu_sockets", "Sockets.", machine.topology.sockets),
        ("machine_memory_bytes", "Memory.", stats.node.memory_bytes),
        ("machine_swap_bytes", "Swap.", stats.node.swap_bytes),
    ):
        family = Family(name, "gauge", help_text)
        family.add(f"{{{labels}}}", value)
        yield family
    versions = {
        "cadvisorRevision": "",
        "cadvisorVersion": "",
        "dockerVersion": "",
        "kernelVersion": machine.kernel_version,
        "osVersion": machine.os_image,
    }
    info = Family("cadvisor_version_info", "gauge", "The machine's kernel and distribution.")
    info.add(f"{{{inner_label_text(versions)}}}", 1)
    yield info
    for name in ("container_scrape_error", "machine_scrape_error"):
        error = Family(name, "gauge", "1 if some of the figures could not be had.")
        error.add("", int(name == "container_scrape_error" and bool(stats.problems)))
        yield error
