"""The order in which pods are evicted for a signal: as in the Go kubelet. Pure.

For memory and disks, first those who use more than they asked for, among these the lowest
priority, among these the one that is furthest above its request. For process ids the priority
counts first: nobody can ask for them. A pod with more files than can be counted is further above
its request than any whose files were counted: others would go for what it hides. One of which no
figures are known comes last, because nothing is known to be gained by its end.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from attrs import frozen

from trio_kubelet.config.eviction import SIGNALS, Disk, Resource, Signal
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resources import pod_requests
from trio_kubelet.stats.values import PodStats

_DISKS_OF_LAYERS: Mapping[DiskLayout, Collection[Disk]] = {
    DiskLayout.SHARED: tuple(Disk),
    DiskLayout.IMAGES_APART: (Disk.IMAGES, Disk.CONTAINERS),
    DiskLayout.SPLIT: (Disk.NODE, Disk.CONTAINERS),
}
"""The disks that have writable layers."""

_DISKS_OF_FILES: Mapping[DiskLayout, Collection[Disk]] = {
    DiskLayout.SHARED: tuple(Disk),
    DiskLayout.IMAGES_APART: (Disk.NODE,),
    DiskLayout.SPLIT: (Disk.NODE, Disk.CONTAINERS),
}
"""The disks that have the files of volumes and logs, which are counted one by one."""


@frozen(kw_only=True)
class Candidate:
    """A pod with the resources that it was allocated, and its figures; None if there are none."""

    pod: Pod
    stats: PodStats | None = None


@frozen(kw_only=True)
class Figures:
    """The figures of pods that tell which one goes; without both of these, cgroups alone."""

    disks: bool
    layers: bool
    """Writable layers, for which the runtime is asked."""


@frozen(kw_only=True)
class Claim:
    """The use of a signal's resource by a pod, and its request for it.

    `is_counted` is False if at least so much is used.
    """

    used: int
    requested: int
    is_counted: bool = True

    @property
    def excess(self) -> int:
        """The use beyond the request; negative below it."""
        return self.used - self.requested


def ranked(
    signal: Signal, candidates: Iterable[Candidate], layout: DiskLayout
) -> tuple[Candidate, ...]:
    """The candidates in the order in which they would be evicted, without those that never are.

    Static, mirror and critical pods stay: the node is worse off without them.
    """
    may_go = (each for each in candidates if not is_critical(each.pod))
    return tuple(sorted(may_go, key=_rank_by(signal, layout)))


def figures_for(signal: Signal, layout: DiskLayout) -> Figures:
    """The figures that the order of pods for a signal stands on."""
    disk = SIGNALS[signal].disk
    return Figures(disks=disk is not None, layers=disk in _DISKS_OF_LAYERS[layout])


def claim(signal: Signal, candidate: Candidate, layout: DiskLayout) -> Claim | None:
    """The pod's use and request of what the signal measures; None if it is not known."""
    stats = candidate.stats
    if stats is None or (used := _used(signal, stats, layout)) is None:
        return None
    row = SIGNALS[signal]
    asked = pod_requests(candidate.pod).get(row.resource)
    return Claim(
        used=used,
        requested=asked.value if asked is not None else 0,
        is_counted=stats.is_counted or row.disk not in _DISKS_OF_FILES[layout],
    )


def _rank_by(
    signal: Signal, layout: DiskLayout
) -> Callable[[Candidate], tuple[bool, bool, int, bool, int, str]]:
    priority_first = SIGNALS[signal].priority_first

    def rank(candidate: Candidate) -> tuple[bool, bool, int, bool, int, str]:
        found = claim(signal, candidate, layout)
        excess = found.excess if found is not None else 0
        return (
            found is None,
            excess <= 0 and not priority_first,
            candidate.pod.spec.priority or 0,
            found is None or found.is_counted,
            -excess,
            candidate.pod.metadata.uid,
        )

    return rank


def _used(signal: Signal, stats: PodStats, layout: DiskLayout) -> int | None:
    row = SIGNALS[signal]
    if row.disk is not None:
        return _disk_used(row.disk, stats, layout, in_bytes=row.resource.in_bytes)
    if row.resource is Resource.PIDS:
        return stats.usage.tasks
    return stats.usage.memory.working_set if stats.usage.memory is not None else None


def _disk_used(disk: Disk, stats: PodStats, layout: DiskLayout, *, in_bytes: bool) -> int | None:
    """Bytes or inodes on a disk. None of a pod's own are on a disk of images alone."""
    whole = stats.ephemeral_storage
    if whole is None:
        return None
    all_of_it = (whole.used if in_bytes else whole.inodes_used) or 0
    if layout is DiskLayout.SHARED:
        return all_of_it
    if layout is DiskLayout.SPLIT:
        return 0 if disk is Disk.IMAGES else all_of_it
    known = stats.layers
    layers = ((known.used if in_bytes else known.inodes_used) or 0) if known is not None else 0
    return layers if disk in _DISKS_OF_LAYERS[layout] else max(0, all_of_it - layers)
