"""The limits that a pod sets itself for its use of the node's disk. Pure.

A pod that breaks one is evicted whether the disk is short or not: `sizeLimit` of an `emptyDir`,
`ephemeral-storage` among the limits of the pod or of a container, to which writable layers and
logs count. Quota of the kernel are not used, so a limit is broken until somebody measures.
"""

from attrs import frozen

from trio_kubelet.config.eviction import Resource
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.thresholds import DiskLayout
from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.resources import pod_limits
from trio_kubelet.stats.values import ContainerStats, PodStats

EMPTY_DIR = "emptydirfs.limit"
POD_STORAGE = "ephemeralpodfs.limit"
CONTAINER_STORAGE = "ephemeralcontainerfs.limit"
"""The labels of the metric of evictions, as the Go kubelet has them."""

_NONE = Quantity(0)


@frozen(kw_only=True)
class ExceededLimit:
    """A limit that a pod has broken: the label of its kind, and the pod's message."""

    cause: str
    message: str


def has_own_limits(pod: Pod) -> bool:
    """True if the pod has to be measured, for it sets itself a limit."""
    return Resource.STORAGE in pod_limits(pod) or any(
        volume.empty_dir is not None and (volume.empty_dir.size_limit or _NONE) > _NONE
        for volume in pod.spec.volumes
    )


def exceeded_limit(candidate: Candidate, layout: DiskLayout) -> ExceededLimit | None:
    """The first limit that the pod breaks, None if it keeps them or is not measured."""
    pod, stats = candidate.pod, candidate.stats
    if stats is None:
        return None
    return (
        _volume_limit(pod, stats) or _pod_limit(pod, stats) or _container_limit(pod, stats, layout)
    )


def _volume_limit(pod: Pod, stats: PodStats) -> ExceededLimit | None:
    used = {volume.name: volume.filesystem.used for volume in stats.volumes}
    for volume in pod.spec.volumes:
        limit = volume.empty_dir.size_limit if volume.empty_dir is not None else None
        taken = used.get(volume.name)
        if limit is not None and taken is not None and Quantity(taken) > limit > _NONE:
            message = (
                f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{limit.canonical}". '
            )
            return ExceededLimit(cause=EMPTY_DIR, message=message)
    return None


def _pod_limit(pod: Pod, stats: PodStats) -> ExceededLimit | None:
    limit = pod_limits(pod).get(Resource.STORAGE)
    whole = stats.ephemeral_storage
    if limit is None or whole is None or Quantity(whole.used or 0) <= limit:
        return None
    message = (
        "Pod ephemeral local storage usage exceeds the total limit of containers "
        f"{limit.canonical}. "
    )
    return ExceededLimit(cause=POD_STORAGE, message=message)


def _container_limit(pod: Pod, stats: PodStats, layout: DiskLayout) -> ExceededLimit | None:
    limits = {
        each.name: each.resources.limits[Resource.STORAGE]
        for each in pod.spec.containers
        if each.resources is not None and each.resources.limits.get(Resource.STORAGE)
    }
    for each in stats.containers:
        limit = limits.get(each.name)
        if limit is not None and Quantity(_container_used(each, layout)) > limit:
            message = (
                f"Container {each.name} exceeded its local ephemeral storage limit "
                f'"{limit.canonical}". '
            )
            return ExceededLimit(cause=CONTAINER_STORAGE, message=message)
    return None


def _container_used(stats: ContainerStats, layout: DiskLayout) -> int:
    """Bytes of logs, and of the writable layer where that is on the node's own disk."""
    parts = (stats.logs,) if layout is not DiskLayout.SHARED else (stats.logs, stats.root)
    return sum(each.used or 0 for each in parts if each is not None)
