"""Memory of the QoS classes, kept apart from one another. Pure.

Protection (`memoryReservationPolicy: TieredReservation`, KEP-2570, cgroup v2 alone): the kernel
does not take back the memory that guaranteed pods asked for, and that of burstable ones not before
all else. A cgroup is protected only as far as those above it are, so they have the sums.

Reserve (`qosReserved`): classes may not use a share of what pods of the classes above them asked
for; that holds on both versions.
"""

from collections.abc import Iterable, Mapping

from attrs import frozen

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.resources.pod_resources import pod_requests, qos_class

TIERED_RESERVATION = "TieredReservation"


@frozen(kw_only=True)
class MemoryProtection:
    """Memory that the kernel does not take back: at all, and before all else is taken."""

    min_bytes: int = 0
    low_bytes: int = 0


@frozen(kw_only=True)
class MemoryReserve:
    """The share of requests that lower classes may not use, of all that pods may have."""

    percent: int
    allocatable_bytes: int


def protects_memory(configuration: KubeletConfiguration) -> bool:
    """True if memory that pods ask for is protected."""
    return configuration.memory_reservation_policy == TIERED_RESERVATION


def pod_protection(pod: Pod) -> MemoryProtection:
    """Return the protection of a pod's memory."""
    request, qos = _memory_request(pod), qos_class(pod)
    return MemoryProtection(
        min_bytes=request if qos is PodQOSClass.GUARANTEED else 0,
        low_bytes=request if qos is PodQOSClass.BURSTABLE else 0,
    )


def memory_requests(pods: Iterable[Pod]) -> Mapping[PodQOSClass, int]:
    """Return the bytes that the pods of each class ask for together."""
    sums = dict.fromkeys(PodQOSClass, 0)
    for pod in pods:
        sums[qos_class(pod)] += _memory_request(pod)
    return sums


def class_protections(
    requests: Mapping[PodQOSClass, int],
) -> Mapping[PodQOSClass, MemoryProtection]:
    """Return the protection of the classes' cgroups; that of guaranteed pods is that of all pods.

    There the kernel is asked not to take back what burstable pods asked for either: without
    `memory.low` of its own the cgroup of all pods would leave theirs without effect.
    """
    guaranteed, burstable = requests[PodQOSClass.GUARANTEED], requests[PodQOSClass.BURSTABLE]
    return {
        PodQOSClass.GUARANTEED: MemoryProtection(
            min_bytes=guaranteed + burstable, low_bytes=burstable
        ),
        PodQOSClass.BURSTABLE: MemoryProtection(low_bytes=burstable),
        PodQOSClass.BEST_EFFORT: MemoryProtection(),
    }


def class_limits(
    requests: Mapping[PodQOSClass, int], reserve: MemoryReserve
) -> Mapping[PodQOSClass, int]:
    """Return the memory limits, in bytes, of the classes from which something is kept."""
    kept = {qos: requested * reserve.percent // 100 for qos, requested in requests.items()}
    burstable = reserve.allocatable_bytes - kept[PodQOSClass.GUARANTEED]
    best_effort = burstable - kept[PodQOSClass.BURSTABLE]
    return {
        PodQOSClass.BURSTABLE: max(burstable, 0),
        PodQOSClass.BEST_EFFORT: max(best_effort, 0),
    }


def _memory_request(pod: Pod) -> int:
    requests = pod_requests(pod)
    return requests["memory"].value if "memory" in requests else 0
