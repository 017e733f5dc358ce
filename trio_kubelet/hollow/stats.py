"""Plausible figures for the stats calls: made up, but steady and in proportion.

A running container uses a twentieth of a core, and of the rest what its record says; a sandbox
uses what its containers use together, and one task.
"""

from trio_kubelet.hollow.records import HollowContainer, HollowSandbox
from trio_kubelet.rpc.stubs.runtime import v1 as cri

_NANO_CORES = 50_000_000
_DEFAULT_MEMORY_BYTES = 8 << 20


def container_stats(container: HollowContainer, now_ns: int) -> cri.ContainerStats:
    """One container's figures; those of one that does not run lack CPU and memory."""
    config = container.config
    stats = cri.ContainerStats(
        attributes=cri.ContainerAttributes(
            id=container.id,
            metadata=config.metadata,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
        ),
        writable_layer=cri.FilesystemUsage(
            timestamp=now_ns,
            fs_id=cri.FilesystemIdentifier(mountpoint="/var/lib/hollow/layers"),
            used_bytes=_number(container.use.layer_bytes),
            inodes_used=_number(container.use.layer_inodes),
        ),
    )
    if container.state is cri.ContainerState.CONTAINER_RUNNING:
        stats.cpu = _cpu(now_ns, _core_nanoseconds(container, now_ns), _NANO_CORES)
        stats.memory = _memory(now_ns, memory_bytes(container), _limit_bytes(container))
    return stats


def sandbox_stats(sandbox: HollowSandbox, now_ns: int) -> cri.PodSandboxStats:
    """The figures of a sandbox and of its running containers."""
    config = sandbox.config
    running = [
        container
        for container in sandbox.containers.values()
        if container.state is cri.ContainerState.CONTAINER_RUNNING
    ]
    used = sum(_core_nanoseconds(container, now_ns) for container in running)
    return cri.PodSandboxStats(
        attributes=cri.PodSandboxAttributes(
            id=sandbox.id,
            metadata=config.metadata,
            labels=dict(config.labels),
            annotations=dict(config.annotations),
        ),
        linux=cri.LinuxPodSandboxStats(
            cpu=_cpu(now_ns, used, _NANO_CORES * len(running)),
            memory=_memory(now_ns, sum(memory_bytes(each) for each in running), 0),
            network=cri.NetworkUsage(timestamp=now_ns, default_interface=_interface()),
            process=cri.ProcessUsage(
                timestamp=now_ns,
                process_count=_number(1 + sum(container.use.tasks for container in running)),
            ),
            containers=[container_stats(container, now_ns) for container in running],
        ),
    )


def _core_nanoseconds(container: HollowContainer, now_ns: int) -> int:
    # The clock may have been set back since the start.
    ran_ns = max(0, now_ns - container.started_at)
    return ran_ns * _NANO_CORES // 1_000_000_000


def _limit_bytes(container: HollowContainer) -> int:
    return container.resources.memory_limit_in_bytes


def memory_bytes(container: HollowContainer) -> int:
    """The memory that a container uses as long as it runs."""
    if container.use.memory_bytes is not None:
        return container.use.memory_bytes
    return _limit_bytes(container) // 2 or _DEFAULT_MEMORY_BYTES


def _cpu(now_ns: int, core_nanoseconds: int, nano_cores: int) -> cri.CpuUsage:
    return cri.CpuUsage(
        timestamp=now_ns,
        usage_core_nano_seconds=_number(core_nanoseconds),
        usage_nano_cores=_number(nano_cores),
    )


def _memory(now_ns: int, used_bytes: int, limit_bytes: int) -> cri.MemoryUsage:
    return cri.MemoryUsage(
        timestamp=now_ns,
        working_set_bytes=_number(used_bytes),
        available_bytes=_number(max(0, limit_bytes - used_bytes)),
        usage_bytes=_number(used_bytes),
        rss_bytes=_number(used_bytes),
        page_faults=_number(0),
        major_page_faults=_number(0),
    )


def _interface() -> cri.NetworkInterfaceUsage:
    return cri.NetworkInterfaceUsage(
        name="eth0",
        rx_bytes=_number(0),
        rx_errors=_number(0),
        tx_bytes=_number(0),
        tx_errors=_number(0),
    )


def _number(value: int) -> cri.UInt64Value:
    return cri.UInt64Value(value=value)
