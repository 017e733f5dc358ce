"""Pods with resources of their own (`spec.resources`): one part of the machine for all. Pure.

With the gate PodLevelResourceManagers (KEP-5526) it depends on the scope of the topology manager
what such a Guaranteed pod has. In the scope of pods it has its CPUs and memory as one part, from
the NUMA nodes that suit them. Containers whose own requests are Guaranteed have slices of it for
themselves; all others share what is left, the pool of the pod. In the scope of containers these
have CPUs and memory of the node, and the others share those of everybody.

A slice of an init container is used again by what runs after it, the pool included; that of a
sidecar is not.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum, auto

from trio_kubelet.k8s import Container, Pod, PodQOSClass, Quantity
from trio_kubelet.k8s.totals import container_limits, container_requests, passing_containers
from trio_kubelet.resource_managers.cpu_sets import CpuSet
from trio_kubelet.resource_managers.placement import Refusal, RefusedError
from trio_kubelet.resources import qos_class
from trio_kubelet.resources.pod_resources import has_pod_level_resources

EMPTY_POOL = "EmptyPodSharedPoolError"

Amounts = Mapping[str, int]
"""Bytes of `memory` and of huge pages, by the names that resources have."""


class PodLevel(Enum):
    """The way in which pods with resources of their own are served."""

    SHARED = auto()
    """The gate is off: all their containers share CPUs and memory with everybody."""
    BY_CONTAINER = auto()
    BY_POD = auto()


def is_served_whole(pod: Pod, pod_level: PodLevel) -> bool:
    """True if a pod has its CPUs and memory as one part."""
    return pod_level is PodLevel.BY_POD and _is_guaranteed_whole(pod)


def has_slices(pod: Pod, pod_level: PodLevel) -> bool:
    """True if containers of a pod may have CPUs or memory for themselves."""
    if has_pod_level_resources(pod) and pod_level is PodLevel.SHARED:
        return False
    return qos_class(pod) is PodQOSClass.GUARANTEED


def guaranteed_containers(pod: Pod) -> tuple[Container, ...]:
    """The containers that may have slices: in a pod with resources of its own, not all may.

    They ask for CPU and memory, and for as much as their limits.
    """
    if not has_pod_level_resources(pod):
        return pod.spec.admitted_containers
    return tuple(filter(_is_guaranteed, pod.spec.admitted_containers))


def partitioned_cpus(
    pod: Pod, whole: CpuSet, counts: Mapping[str, int], take: Callable[[CpuSet, int], CpuSet]
) -> dict[str, CpuSet]:
    """Return the CPUs of each container: slices of `counts`, which `take` chooses, and the pool.

    Raises RefusedError if nothing is left for one that shares.
    """
    parts: dict[str, CpuSet] = {}
    sharing: list[str] = []
    held: CpuSet = frozenset()
    passing = passing_containers(pod.spec)
    for container in pod.spec.admitted_containers:
        name = container.name
        if count := counts.get(name, 0):
            parts[name] = take(whole - held, count)
            held |= parts[name] if name not in passing else frozenset()
        elif name in passing:
            parts[name] = whole - held
        else:
            sharing.append(name)
    parts.update(dict.fromkeys(sharing, whole - held))
    if not all(parts.values()):
        raise _empty_pool("cpu", "cpus")
    return parts


def partitioned_memory(
    pod: Pod, whole: Amounts, wanted: Mapping[str, Amounts]
) -> dict[str, Amounts]:
    """Return the bytes of each container: slices of `wanted`, and the pool.

    Raises RefusedError if no memory is left for one that shares.
    """
    parts: dict[str, Amounts] = {}
    sharing: list[str] = []
    held: Counter[str] = Counter()
    passing = passing_containers(pod.spec)
    for container in pod.spec.admitted_containers:
        name = container.name
        if slices := wanted.get(name):
            parts[name] = slices
            if name not in passing:
                held.update(slices)
        elif name in passing:
            parts[name] = _rest(whole, held)
        else:
            sharing.append(name)
    pool = _rest(whole, held)
    parts.update(dict.fromkeys(sharing, pool))
    if not all(part.get("memory") for part in parts.values()):
        raise _empty_pool("memory", "memory", is_of_memory=True)
    return parts


def _rest(whole: Amounts, held: Amounts) -> Amounts:
    left = {name: size - held.get(name, 0) for name, size in whole.items()}
    return {name: size for name, size in left.items() if size > 0}


def _is_guaranteed_whole(pod: Pod) -> bool:
    return has_pod_level_resources(pod) and qos_class(pod) is PodQOSClass.GUARANTEED


def _is_guaranteed(container: Container) -> bool:
    requests, limits = container_requests(container), container_limits(container)
    return all(
        requests.get(name, Quantity(0)) == limits.get(name) and limits[name] > Quantity(0)
        for name in ("cpu", "memory")
    )


def _empty_pool(resource: str, rest: str, *, is_of_memory: bool = False) -> RefusedError:
    refusal = Refusal(
        reason=EMPTY_POOL,
        message=(
            f"pod rejected, sum of exclusive container {resource} requests equals pod budget, "
            f"leaving no {rest} for shared containers"
        ),
    )
    return RefusedError(refusal, is_of_memory=is_of_memory)
