"""The order in which pods are evicted for a signal: as in the Go kubelet. Pure.

For memory and disks, first those who use more than they asked for, among these the lowest
priority, among these the one that is furthest above its request. For process ids the priority
counts first: nobody can ask for them. A pod of which no figures are known comes last, because
nothing is known to be gained by its end.
"""

from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resources import pod_requests
from trio_kubelet.stats.values import PodStats

MEMORY, STORAGE, INODES, PIDS = "memory", "ephemeral-storage", "inodes", "pids"

RESOURCE_OF: Mapping[Signal, str] = {
    Signal.MEMORY: MEMORY,
    Signal.ALLOCATABLE_MEMORY: MEMORY,
    Signal.NODE_DISK: STORAGE,
    Signal.NODE_INODES: INODES,
    Signal.IMAGE_DISK: STORAGE,
    Signal.IMAGE_INODES: INODES,
    Signal.CONTAINER_DISK: STORAGE,
    Signal.CONTAINER_INODES: INODES,
    Signal.PIDS: PIDS,
}
"""The resource that a signal measures, as events and messages name it."""

_IMAGES = frozenset({Signal.IMAGE_DISK, Signal.IMAGE_INODES})
_CONTAINERS = frozenset({Signal.CONTAINER_DISK, Signal.CONTAINER_INODES})


@frozen(kw_only=True)
class Candidate:
    """A pod with the resources that it was allocated, and its figures; None if there are none."""

    pod: Pod
    stats: PodStats | None = None


@frozen(kw_only=True)
class Claim:
    """The use of a signal's resource by a pod, and its request for it."""

    used: int
    requested: int

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


def claim(signal: Signal, candidate: Candidate, layout: DiskLayout) -> Claim | None:
    """The pod's use and request of what the signal measures; None if it is not known."""
    stats = candidate.stats
    used = _used(signal, stats, layout) if stats is not None else None
    if used is None:
        return None
    asked = pod_requests(candidate.pod).get(RESOURCE_OF[signal])
    return Claim(used=used, requested=asked.value if asked is not None else 0)


def _rank_by(
    signal: Signal, layout: DiskLayout
) -> Callable[[Candidate], tuple[bool, bool, int, int, str]]:
    by_request = RESOURCE_OF[signal] != PIDS

    def rank(candidate: Candidate) -> tuple[bool, bool, int, int, str]:
        found = claim(signal, candidate, layout)
        excess = found.excess if found is not None else 0
        return (
            found is None,
            by_request and excess <= 0,
            candidate.pod.spec.priority or 0,
            -excess,
            candidate.pod.metadata.uid,
        )

    return rank


def _used(signal: Signal, stats: PodStats, layout: DiskLayout) -> int | None:
    match RESOURCE_OF[signal]:
        case "memory":
            return stats.usage.memory.working_set if stats.usage.memory is not None else None
        case "pids":
            return stats.usage.tasks
    return _disk_used(signal, stats, layout)


def _disk_used(signal: Signal, stats: PodStats, layout: DiskLayout) -> int | None:
    """Bytes or inodes on the signal's disk. None of a pod's own are on a disk of images alone."""
    in_bytes = RESOURCE_OF[signal] == STORAGE
    whole = stats.ephemeral_storage
    if whole is None:
        return None
    all_of_it = (whole.used if in_bytes else whole.inodes_used) or 0
    if layout is DiskLayout.SHARED:
        return all_of_it
    if layout is DiskLayout.SPLIT:
        return 0 if signal in _IMAGES else all_of_it
    roots = [each.root for each in stats.containers if each.root is not None]
    layers = sum((each.used if in_bytes else each.inodes_used) or 0 for each in roots)
    return layers if signal in _IMAGES | _CONTAINERS else max(0, all_of_it - layers)
