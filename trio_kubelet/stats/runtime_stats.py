"""A container runtime's statistics of containers and sandboxes, as values. Pure.

A figure that CRI wraps (`UInt64Value`) and that is absent was not measured, and is None here.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from attrs import evolve, field, frozen

from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.names import POD_UID_LABEL
from trio_kubelet.stats.values import (
    CpuUsage,
    Filesystem,
    Interface,
    MemoryUsage,
    NetworkStats,
    PsiLine,
    PsiResource,
    PsiStats,
    SwapUsage,
    Usage,
)


@frozen(kw_only=True)
class RuntimeContainer:
    """A container: what it uses, and what it has written to its own layer."""

    read_usage: Callable[[], Usage]
    """For most containers the kernel has told already."""

    root: Filesystem | None
    pod_uid: str


@frozen(kw_only=True)
class RuntimeSandbox:
    """A sandbox with all that is in it, and its network."""

    usage: Usage
    network: NetworkStats | None


@frozen(kw_only=True)
class RuntimeFilesystem:
    """A file system of the runtime: where it is, and what images or containers use of it."""

    mountpoint: str
    used: Filesystem


@frozen(kw_only=True)
class RuntimeStats:
    """All that one round of calls has told, by the ids of containers and sandboxes.

    `of_pods` are the ids of containers by the UIDs of their pods.
    """

    containers: Mapping[str, RuntimeContainer] = field(factory=dict)
    of_pods: Mapping[str, frozenset[str]] = field(factory=dict)
    sandboxes: Mapping[str, RuntimeSandbox] = field(factory=dict)
    images: RuntimeFilesystem | None = None
    layers: RuntimeFilesystem | None = None


def has_layers_before(stats: RuntimeStats, time_ns: int) -> bool:
    """True if the runtime has counted a writable layer before a time, or not yet."""
    return any(
        each.root is not None and each.root.time_ns < time_ns for each in stats.containers.values()
    )


def runtime_containers(stats: Iterable[cri.ContainerStats]) -> Mapping[str, RuntimeContainer]:
    """Containers by their ids."""
    return {
        each.attributes.id: RuntimeContainer(
            read_usage=partial(_usage, each.cpu, each.memory, each.swap, each.io),
            root=_layer(each.writable_layer) if is_present(each.writable_layer) else None,
            pod_uid=each.attributes.labels.get(POD_UID_LABEL, ""),
        )
        for each in stats
    }


def ids_of_pods(containers: Mapping[str, RuntimeContainer]) -> Mapping[str, frozenset[str]]:
    """The ids of containers by the UIDs of their pods."""
    found: dict[str, set[str]] = {}
    for container_id, each in containers.items():
        found.setdefault(each.pod_uid, set()).add(container_id)
    return {uid: frozenset(ids) for uid, ids in found.items()}


def runtime_sandboxes(stats: Iterable[cri.PodSandboxStats]) -> Mapping[str, RuntimeSandbox]:
    """Sandboxes by their ids."""
    return {
        each.attributes.id: RuntimeSandbox(
            usage=evolve(
                _usage(each.linux.cpu, each.linux.memory, None, each.linux.io),
                tasks=_number(each.linux.process.process_count),
            ),
            network=_network(each.linux.network) if is_present(each.linux.network) else None,
        )
        for each in stats
    }


def runtime_filesystem(found: Iterable[cri.FilesystemUsage]) -> RuntimeFilesystem | None:
    """The first of some file systems, which is the one that counts; None if there is none."""
    first = next(iter(found), None)
    if first is None:
        return None
    return RuntimeFilesystem(mountpoint=first.fs_id.mountpoint, used=_layer(first))


def _layer(usage: cri.FilesystemUsage) -> Filesystem:
    return Filesystem(
        time_ns=usage.timestamp,
        used=_number(usage.used_bytes),
        inodes_used=_number(usage.inodes_used),
    )


def _usage(
    cpu: cri.CpuUsage, memory: cri.MemoryUsage, swap: cri.SwapUsage | None, io: cri.IoUsage
) -> Usage:
    total = _number(cpu.usage_core_nano_seconds)
    return Usage(
        time_ns=cpu.timestamp or memory.timestamp,
        cpu=None
        if total is None
        else CpuUsage(total_ns=total, nano_cores=_number(cpu.usage_nano_cores)),
        memory=_memory(memory),
        swap=_swap(swap) if swap is not None else None,
        pressures=PsiStats(
            cpu=_pressure(cpu.psi), memory=_pressure(memory.psi), io=_pressure(io.psi)
        ),
    )


def _memory(memory: cri.MemoryUsage) -> MemoryUsage | None:
    working_set = _number(memory.working_set_bytes)
    usage = _number(memory.usage_bytes)
    if working_set is None:
        return None
    available = _number(memory.available_bytes)
    return MemoryUsage(
        usage=working_set if usage is None else usage,
        working_set=working_set,
        rss=_number(memory.rss_bytes),
        page_faults=_number(memory.page_faults),
        major_page_faults=_number(memory.major_page_faults),
        limit=working_set + available if available else None,
    )


def _swap(swap: cri.SwapUsage) -> SwapUsage | None:
    used = _number(swap.swap_usage_bytes)
    if used is None:
        return None
    available = _number(swap.swap_available_bytes)
    return SwapUsage(usage=used, limit=None if available is None else used + available)


def _pressure(psi: cri.PsiStats) -> PsiResource | None:
    if not is_present(psi):
        return None
    return PsiResource(some=_pressure_line(psi.some), full=_pressure_line(psi.full))


def _pressure_line(data: cri.PsiData) -> PsiLine:
    return PsiLine(avg10=data.avg10, avg60=data.avg60, avg300=data.avg300, total_us=data.total)


def _network(network: cri.NetworkUsage) -> NetworkStats:
    default = network.default_interface
    named = [default, *network.interfaces] if default.name else network.interfaces
    interfaces = {each.name: _interface(each) for each in named}
    return NetworkStats(
        time_ns=network.timestamp, interfaces=tuple(interfaces.values()), default=default.name
    )


def _interface(interface: cri.NetworkInterfaceUsage) -> Interface:
    return Interface(
        name=interface.name,
        rx_bytes=_number(interface.rx_bytes) or 0,
        tx_bytes=_number(interface.tx_bytes) or 0,
        rx_errors=_number(interface.rx_errors) or 0,
        tx_errors=_number(interface.tx_errors) or 0,
    )


def _number(value: cri.UInt64Value) -> int | None:
    return value.value if is_present(value) else None
