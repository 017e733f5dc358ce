"""Puts together what is known of pods from the runtime's cache, cgroups, CRI and disks. Pure.

A container's own cgroup counts first, for it is the kernel's word and costs the runtime nothing.
Where there is none, what the runtime says counts.
"""

import math
from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from trio_kubelet.csi import MeasuredVolume
from trio_kubelet.k8s import Pod
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
    VolumeStats,
)


@frozen(kw_only=True)
class StatsInputs:
    """The sources of pods' values. `images` is the file system of the containers' layers."""

    readings: CgroupReadings
    runtime: RuntimeStats | None = None
    disks: Mapping[str, PodDisk] | None = None
    images: Filesystem | None = None
    root: Filesystem | None = None
    of_drivers: Mapping[str, tuple[VolumeStats, ...]] = field(factory=dict)
    """The volumes that CSI drivers tell of, by the UIDs of pods."""


def volumes_of_drivers(
    measured: Iterable[MeasuredVolume],
) -> Mapping[str, tuple[VolumeStats, ...]]:
    """Return what drivers have told of volumes, by the UIDs of pods."""
    found: dict[str, tuple[VolumeStats, ...]] = {}
    for each in measured:
        usage, uid = each.usage, each.volume.pod_uid
        filesystem = Filesystem(
            time_ns=each.time_ns,
            available=usage.available,
            capacity=usage.capacity,
            used=usage.used,
            inodes=usage.inodes,
            inodes_free=usage.inodes_free,
            inodes_used=usage.inodes_used,
        )
        volume = VolumeStats(
            name=each.volume.name,
            filesystem=filesystem,
            ephemeral=False,
            claim=each.volume.claim,
        )
        found[uid] = (*found.get(uid, ()), volume)
    return found


def shown(pods: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
    """The pods whose figures are shown: those with a sandbox that is ready."""
    return tuple(pod for pod in pods if pod.ready_sandbox is not None)


def with_unseen(seen: Iterable[ObservedPod], wanted: Iterable[Pod]) -> tuple[ObservedPod, ...]:
    """The pods that the runtime has, and those of the wanted ones that nobody has seen in it yet.

    A pod that is being started is looked at when that is done: until then, for as long as its
    hooks take, it may fill a disk. One whose sandbox has ended, which its containers may see to,
    still holds its volumes, those in memory too.
    """
    known = {pod.uid: pod for pod in seen}
    for pod in wanted:
        meta = pod.metadata
        if meta.uid not in known:
            known[meta.uid] = ObservedPod(
                uid=meta.uid, name=meta.name, namespace=meta.namespace, observed_at=-math.inf
            )
    return tuple(known.values())


def running(pod: ObservedPod) -> tuple[ObservedContainer, ...]:
    """The newest container of each name, if it runs."""
    newest = {each.name: each for each in reversed(pod.containers)}
    return tuple(each for each in newest.values() if each.state is ObservedState.RUNNING)


def lacks_cgroups(
    pods: Iterable[ObservedPod], readings: CgroupReadings, *, of_containers: bool
) -> bool:
    """True if the runtime has to be asked, because a pod that runs has no cgroup of ours.

    With `of_containers` that of a container counts, too, which is gone as soon as it ends.
    """
    return any(
        pod.uid not in readings.pods
        or (of_containers and container.id not in readings.pods[pod.uid].children)
        for pod in shown(pods)
        for container in running(pod)
    )


_NO_CGROUP = PodCgroup(path="", usage=Usage(time_ns=0), children={}, network=None)


def pod_stats(
    pods: Iterable[ObservedPod], found: StatsInputs, rates: Rates
) -> tuple[PodStats, ...]:
    """The figures of pods, in the order of their names."""
    stats = [_pod(pod, found, rates) for pod in pods]
    return tuple(sorted(stats, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _pod(pod: ObservedPod, found: StatsInputs, rates: Rates) -> PodStats:
    sandbox = next(iter(pod.sandboxes), None)
    cgroup = found.readings.pods.get(pod.uid) or _NO_CGROUP
    disk = (found.disks or {}).get(pod.uid)
    containers = tuple(
        stats
        for each in running(pod)
        if (stats := _container(each, cgroup, found, disk, rates)) is not None
    )
    told = None
    if found.runtime is not None and sandbox is not None:
        told = found.runtime.sandboxes.get(sandbox.id)
    usage = cgroup.usage if cgroup.path else told.usage if told is not None else None
    network = None
    if sandbox is not None and not sandbox.host_network:
        network = cgroup.network or (told.network if told is not None else None)
    layers = _layers(pod, found)
    return PodStats(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        started_at_ns=sandbox.created_at if sandbox is not None else 0,
        usage=rates.rated(pod.uid, usage) if usage is not None else total(containers),
        containers=containers,
        cgroup=cgroup.path,
        sandbox=_sandbox(sandbox, cgroup) if sandbox is not None else None,
        network=network,
        volumes=(*(disk.volumes if disk is not None else ()), *found.of_drivers.get(pod.uid, ())),
        layers=layers,
        ephemeral_storage=ephemeral_storage(layers, disk, found.root),
        is_counted=disk is None or disk.is_complete,
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
    """The use of a file system, with the size of that; None where more is used than there is.

    A runtime that counts wrong must not have a pod evicted.
    """
    if used is None or whole is None:
        return used
    if whole.capacity is not None and (used.used or 0) > whole.capacity:
        return None
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


def _layers(pod: ObservedPod, found: StatsInputs) -> Filesystem | None:
    """The use of the writable layers of all containers of a pod; None if none is known.

    That of one that has ended stays until it is removed: an init container could hide in it
    whatever it has written. So could one that nobody has looked at since it was started: the
    runtime tells whose it is.
    """
    runtime = found.runtime or RuntimeStats()
    told = runtime.containers
    ids = {each.id for each in pod.containers} | runtime.of_pods.get(pod.uid, frozenset())
    known = [_on(found.images, told[each].root) for each in sorted(ids) if each in told]
    layers = [each for each in known if each is not None]
    return _sum_of_use(layers[0], layers) if layers else None


def ephemeral_storage(
    layers: Filesystem | None, disk: PodDisk | None, whole: Filesystem | None
) -> Filesystem | None:
    """The use of the node's own disk by a pod: layers, logs, volumes, hosts file and messages.

    None until all of it is known.
    """
    if disk is None or whole is None:
        return None
    volumes = (volume.filesystem for volume in disk.volumes if volume.ephemeral)
    return _sum_of_use(whole, (layers, *volumes, *disk.logs.values(), disk.files))


def _sum_of_use(whole: Filesystem, parts: Iterable[Filesystem | None]) -> Filesystem:
    """A file system with the use of all of these parts that are known."""
    known = [each for each in parts if each is not None]
    return evolve(
        whole,
        used=sum(each.used or 0 for each in known),
        inodes_used=sum(each.inodes_used or 0 for each in known),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None
