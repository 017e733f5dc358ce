"""The sums of a pod's requests and limits, and the QoS class that follows from them.

Init containers run one after the other, so only the largest counts; restartable ones (sidecars,
KEP-753) keep running and add to everything that starts after them. Pod-level resources
(KEP-2837) take the place of the sums for the resources that they name. The overhead of the
runtime class (KEP-688) comes on top.
"""

from collections.abc import Iterable, Mapping

from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Pod,
    PodQOSClass,
    Quantity,
    ResourceRequirements,
)

_QOS_RESOURCES = ("cpu", "memory")
_POD_LEVEL_RESOURCES = frozenset(_QOS_RESOURCES)


def pod_requests(pod: Pod) -> Mapping[str, Quantity]:
    """Return what the pod asks for: resource name → quantity, overhead included.

    A request that is absent although a limit is given was filled in by defaulting; this
    function does not do it again.
    """
    sums = dict(whole_requests(pod))
    _add(sums, pod.spec.overhead)
    return sums


def whole_requests(pod: Pod) -> Mapping[str, Quantity]:
    """Return what is set aside for all containers of a pod together, without its overhead."""
    whole = pod.spec.resources.requests if pod.spec.resources is not None else {}
    return {**pod.spec.total_requests, **_pod_level(whole)}


def pod_limits(pod: Pod) -> Mapping[str, Quantity]:
    """Return what the pod may use at most: resource name → quantity.

    Overhead comes on top only where a limit is set.

    A resource is in the result when any container limits it: whether the sum may be enforced
    is for the caller to decide (see `pod_cgroup_config`).
    """
    sums = dict(pod.spec.total_limits)
    if pod.spec.resources is not None:
        sums.update(_pod_level(pod.spec.resources.limits))
    _add(sums, {name: q for name, q in pod.spec.overhead.items() if _is_positive(sums.get(name))})
    return sums


def has_pod_level_resources(pod: Pod) -> bool:
    """True if `spec.resources` names a resource that is understood at the pod's level."""
    resources = pod.spec.resources
    return resources is not None and bool(
        _pod_level(resources.requests) or _pod_level(resources.limits)
    )


def qos_class(pod: Pod) -> PodQOSClass:
    """Return the QoS class: `status.qosClass` once it is set, as it never changes; else computed.

    Guaranteed: every container has limits for cpu and memory, and requests equal to them.
    BestEffort: nothing is asked for or limited. Burstable: all the rest.
    """
    if pod.status.qos_class:
        return PodQOSClass(pod.status.qos_class)
    if has_pod_level_resources(pod) and pod.spec.resources is not None:
        parts: tuple[ResourceRequirements, ...] = (pod.spec.resources,)
    else:
        parts = tuple(
            c.resources or ResourceRequirements()
            for c in (*pod.spec.containers, *pod.spec.init_containers)
        )
    requests = _qos_sums(part.requests for part in parts)
    limits = _qos_sums(part.limits for part in parts)
    if not requests and not limits:
        return PodQOSClass.BEST_EFFORT
    fully_limited = all(
        all(_is_positive(part.limits.get(name)) for name in _QOS_RESOURCES) for part in parts
    )
    if fully_limited and requests == limits:
        return PodQOSClass.GUARANTEED
    return PodQOSClass.BURSTABLE


def _add(sums: dict[str, Quantity], more: Mapping[str, Quantity]) -> None:
    for name, quantity in more.items():
        sums[name] = sums[name] + quantity if name in sums else quantity


def _pod_level(resources: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
    return {
        name: quantity
        for name, quantity in resources.items()
        if name in _POD_LEVEL_RESOURCES or name.startswith(HUGEPAGES_PREFIX)
    }


def _qos_sums(parts: Iterable[Mapping[str, Quantity]]) -> Mapping[str, Quantity]:
    sums: dict[str, Quantity] = {}
    for part in parts:
        _add(sums, {n: part[n] for n in _QOS_RESOURCES if _is_positive(part.get(n))})
    return sums


def _is_positive(quantity: Quantity | None) -> bool:
    return quantity is not None and quantity > Quantity(0)
