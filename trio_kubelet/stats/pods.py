"""Puts together what is known of pods from the runtime's cache, cgroups, CRI and disks. Pure.

A container's own cgroup counts first, for it is the kernel's word and costs the runtime nothing.
Where there is none, what the runtime says counts.
"""

from collections.abc import Iterable, Mapping

from attrs import evolve, frozen

from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.stats.cgroup_reader import CgroupReadings, PodCgroup
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.stats.rates import Rates
from trio_kubelet.stats.runtime_stats import RuntimeStats
from trio_kubelet.stats.values import (
    ContainerStats,
    CpuUsage,
    Filesystem,
    MemoryUsage,
    PodStats,
    SandboxStats,
    SwapUsage,
    Usage,
)


@frozen(kw_only=True)
class StatsInputs:
    """The sources of pods' values. `images` is the file system of the containers' layers."""

    readings: CgroupReadings
    runtime: RuntimeStats | None = None
    disks: Mapping[str, PodDisk] | None = None
    images: Filesystem | None = None
    root: Filesystem | None = None


def shown(pods: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
    """The pods that there are figures of: those with a sandbox that is ready."""
    return tuple(pod for pod in pods if pod.ready_sandbox is not None)


def running(pod: ObservedPod) -> tuple[ObservedContainer, ...]:
    """The newest container of each name, if it runs."""
    newest = {each.name: each for each in reversed(pod.containers)}
    return tuple(each for each in newest.values() if each.state is ObservedState.RUNNING)


def lacks_cgroups(pods: Iterable[ObservedPod], readings: CgroupReadings) -> bool:
    """True if the runtime has to be asked, because a container that runs has no cgroup of ours."""
    return any(
        container.id not in cgroup.children
        for pod in shown(pods)
        for cgroup in (readings.pods.get(pod.uid) or _NO_CGROUP,)
        for container in running(pod)
    )


_NO_CGROUP = PodCgroup(path="", usage=Usage(time_ns=0), children={}, network=None)


def pod_stats(
    pods: Iterable[ObservedPod], found: StatsInputs, rates: Rates
) -> tuple[PodStats, ...]:
    """The pods in the order of their names."""
    stats = [_pod(pod, sandbox, found, rates) for pod in pods if (sandbox := pod.ready_sandbox)]
    return tuple(sorted(stats, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _pod(pod: ObservedPod, sandbox: ObservedSandbox, found: StatsInputs, rates: Rates) -> PodStats:
    cgroup = found.readings.pods.get(pod.uid) or _NO_CGROUP
    disk = (found.disks or {}).get(pod.uid)
    containers = tuple(
        stats
        for each in running(pod)
        if (stats := _container(each, cgroup, found, disk, rates)) is not None
    )
    told = found.runtime.sandboxes.get(sandbox.id) if found.runtime is not None else None
    usage = cgroup.usage if cgroup.path else told.usage if told is not None else None
    network = None
    if not sandbox.host_network:
        network = cgroup.network or (told.network if told is not None else None)
    return PodStats(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        started_at_ns=sandbox.created_at,
        usage=rates.rated(pod.uid, usage) if usage is not None else total(containers),
        containers=containers,
        cgroup=cgroup.path,
        sandbox=_sandbox(sandbox, cgroup),
        network=network,
        volumes=disk.volumes if disk is not None else (),
        ephemeral_storage=ephemeral_storage(containers, disk, found.root),
    )


def _sandbox(sandbox: ObservedSandbox, cgroup: PodCgroup) -> SandboxStats | None:
    own = cgroup.children.get(sandbox.id)
    if own is None:
        return None
    return SandboxStats(
        id=sandbox.id, cgroup=own.path, usage=own.usage, started_at_ns=sandbox.created_at
    )


def _container(
    container: ObservedContainer,
    cgroup: PodCgroup,
    found: StatsInputs,
    disk: PodDisk | None,
    rates: Rates,
) -> ContainerStats | None:
    own = cgroup.children.get(container.id)
    told = found.runtime.containers.get(container.id) if found.runtime is not None else None
    usage = own.usage if own is not None else told.read_usage() if told is not None else None
    if usage is None:
        return None
    return ContainerStats(
        name=container.name,
        id=container.id,
        image=container.image,
        started_at_ns=container.started_at,
        usage=rates.rated(container.id, usage),
        cgroup=own.path if own is not None else "",
        root=_on(found.images, told.root if told is not None else None),
        logs=disk.logs.get(container.name) if disk is not None else None,
    )


def _on(whole: Filesystem | None, used: Filesystem | None) -> Filesystem | None:
    """The use of a file system, with the size of that."""
    if used is None or whole is None:
        return used
    return evolve(whole, time_ns=used.time_ns, used=used.used, inodes_used=used.inodes_used)


def total(containers: Iterable[ContainerStats]) -> Usage:
    """The use of containers together, where nothing is known of their pod as a whole."""
    usages = [each.usage for each in containers]
    cpus = [each.cpu for each in usages if each.cpu is not None]
    memories = [each.memory for each in usages if each.memory is not None]
    swaps = [each.swap for each in usages if each.swap is not None]
    return Usage(
        time_ns=max((each.time_ns for each in usages), default=0),
        cpu=_total_cpu(cpus) if cpus else None,
        memory=_total_memory(memories) if memories else None,
        swap=SwapUsage(usage=sum(each.usage for each in swaps)) if swaps else None,
    )


def _total_cpu(cpus: list[CpuUsage]) -> CpuUsage:
    return CpuUsage(
        total_ns=sum(each.total_ns for each in cpus),
        nano_cores=_sum(each.nano_cores for each in cpus),
    )


def _total_memory(memories: list[MemoryUsage]) -> MemoryUsage:
    return MemoryUsage(
        usage=sum(each.usage for each in memories),
        working_set=sum(each.working_set for each in memories),
        rss=_sum(each.rss for each in memories),
        page_faults=_sum(each.page_faults for each in memories),
        major_page_faults=_sum(each.major_page_faults for each in memories),
    )


def ephemeral_storage(
    containers: Iterable[ContainerStats], disk: PodDisk | None, whole: Filesystem | None
) -> Filesystem | None:
    """The use of the node's own disk by a pod: layers, logs, volumes, hosts file and messages.

    None until all of it is known.
    """
    if disk is None or whole is None:
        return None
    parts = [each.root for each in containers]
    parts += [volume.filesystem for volume in disk.volumes if volume.ephemeral]
    parts += disk.logs.values()
    parts += [disk.files] if disk.files is not None else []
    known = [each for each in parts if each is not None]
    return evolve(
        whole,
        used=sum(each.used or 0 for each in known),
        inodes_used=sum(each.inodes_used or 0 for each in known),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None
