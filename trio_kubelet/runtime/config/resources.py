"""The resources that sandboxes and containers may use, in the kernel's terms, as CRI carries it.

From requests and limits to shares, quota, memory limit, swap, huge pages and the OOM score.
Values for cgroup v2 that CRI has no field for travel in `unified`.
"""

from collections.abc import Mapping

from attrs import evolve

from trio_kubelet.k8s import (
    HUGEPAGES_PREFIX,
    Container,
    Pod,
    PodQOSClass,
    Quantity,
)
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resource_managers.placement import ANYWHERE, ContainerPlacement
from trio_kubelet.resources import (
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    pod_limits,
    pod_requests,
    qos_class,
    quota_period_us,
)
from trio_kubelet.resources.cgroup_files import page_size
from trio_kubelet.rpc import present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.node_facts import NodeFacts

_NOTHING = Quantity(0)

BEST_EFFORT_OOM_SCORE_ADJ = 1000
GUARANTEED_OOM_SCORE_ADJ = -997
_MIN_BURSTABLE_OOM_SCORE_ADJ = 1000 + GUARANTEED_OOM_SCORE_ADJ
_MAX_BURSTABLE_OOM_SCORE_ADJ = BEST_EFFORT_OOM_SCORE_ADJ - 1

_NODE_CRITICAL_CLASS = "system-node-critical"

DEFAULT_THROTTLING_FACTOR = 0.9
_LIMITED_SWAP = "LimitedSwap"
_TIERED_RESERVATION = "TieredReservation"


def sandbox_resources(pod: Pod, node: NodeFacts) -> cri.LinuxContainerResources:
    """The sums over the pod's containers, without the overhead of its runtime class."""
    bare = evolve(pod, spec=evolve(pod.spec, overhead={}))
    requests, limits = pod_requests(bare), pod_limits(bare)
    return _base_resources(requests.get("cpu"), limits, node)


def sandbox_overhead(pod: Pod, node: NodeFacts) -> cri.LinuxContainerResources:
    """The amounts that the runtime class takes for itself (KEP-688), request and limit alike.

    Without one the message is there, too, but empty.
    """
    if not pod.spec.overhead:
        return present(cri.LinuxContainerResources())
    return _base_resources(pod.spec.overhead.get("cpu"), pod.spec.overhead, node)


def container_resources(
    pod: Pod,
    container: Container,
    node: NodeFacts,
    placement: ContainerPlacement = ANYWHERE,
) -> cri.LinuxContainerResources:
    """The resources of one container, with its part of the machine.

    Where the pod as a whole has limits (KEP-2837), they hold for a container without its own. CPUs
    that it has for itself are its limit: no quota holds it up on them.
    """
    whole = pod.spec.resources.limits if pod.spec.resources is not None else {}
    limits = dict(_limits(container))
    for name in ("cpu", "memory"):
        limits[name] = limits.get(name) or whole.get(name, _NOTHING)
    resources = _base_resources(_requests(container).get("cpu"), limits, node)
    resources.cpuset_cpus = placement.cpuset_cpus
    resources.cpuset_mems = placement.cpuset_mems
    if placement.has_exclusive_cpus and node.settings.gates["DisableCPUQuotaWithExclusiveCPUs"]:
        resources.cpu_quota = resources.cpu_period = 0
    resources.oom_score_adj = oom_score_adj(pod, container, node.memory_capacity_bytes)
    resources.hugepage_limits = _hugepage_limits({**whole, **limits}, node.hugepage_sizes)
    _limit_swap(resources, pod, container, node)
    if _has_memory_qos(node):
        resources.unified.update(_memory_qos(pod, container, node))
    return resources


def resource_update(
    pod: Pod, container: Container, node: NodeFacts, resource: str
) -> cri.LinuxContainerResources:
    """The values of one resource, `cpu` or `memory`, for a container that runs.

    The others are absent, which in CRI leaves them as they are.
    """
    values = container_resources(pod, container, node)
    if resource == "cpu":
        return cri.LinuxContainerResources(
            cpu_shares=values.cpu_shares, cpu_quota=values.cpu_quota, cpu_period=values.cpu_period
        )
    # A container that is throttled no more would keep the amount that it was throttled at.
    unthrottled = {"memory.high": "max"} if _has_memory_qos(node) else {}
    return cri.LinuxContainerResources(
        memory_limit_in_bytes=values.memory_limit_in_bytes,
        memory_swap_limit_in_bytes=values.memory_swap_limit_in_bytes,
        oom_score_adj=values.oom_score_adj,
        unified={**unthrottled, **values.unified},
    )


def oom_score_adj(pod: Pod, container: Container, capacity_bytes: int) -> int:
    """The score of a container when the node is out of memory: the highest is killed first.

    A burstable container is the safer the larger a part of the node it asked for; what the pod
    asks for beyond its containers is shared among them. A sidecar is at least as safe as the
    regular containers that need it (KEP-753).
    """
    if is_critical(pod) and pod.spec.priority_class_name == _NODE_CRITICAL_CLASS:
        return GUARANTEED_OOM_SCORE_ADJ
    qos = qos_class(pod)
    if qos is PodQOSClass.GUARANTEED:
        return GUARANTEED_OOM_SCORE_ADJ
    if qos is PodQOSClass.BEST_EFFORT:
        return BEST_EFFORT_OOM_SCORE_ADJ
    request = _memory_request(container)
    if container in pod.spec.init_containers and container.restart_policy == "Always":
        request = max(request, min(map(_memory_request, pod.spec.containers), default=0))
    request += _unassigned_memory_share(pod)
    adjustment = 1000 - 1000 * request // capacity_bytes
    return max(_MIN_BURSTABLE_OOM_SCORE_ADJ, min(_MAX_BURSTABLE_OOM_SCORE_ADJ, adjustment))


def _base_resources(
    cpu_request: Quantity | None, limits: Mapping[str, Quantity], node: NodeFacts
) -> cri.LinuxContainerResources:
    cpu_limit = limits.get("cpu", _NOTHING)
    weighed = cpu_limit if cpu_request is None else cpu_request
    resources = cri.LinuxContainerResources(
        cpu_shares=milli_cpu_to_shares(weighed.milli_value),
        memory_limit_in_bytes=limits.get("memory", _NOTHING).value,
    )
    if node.configuration.cpu_cfs_quota:
        period_us = quota_period_us(node.configuration)
        resources.cpu_period = period_us
        resources.cpu_quota = milli_cpu_to_quota(cpu_limit.milli_value, period_us)
    if node.cgroup_v2 and not node.configuration.single_process_oom_kill:
        # The kernel then kills the whole container, not one process out of its middle.
        resources.unified["memory.oom.group"] = "1"
    return resources


def _limit_swap(
    resources: cri.LinuxContainerResources, pod: Pod, container: Container, node: NodeFacts
) -> None:
    """KEP-2400: no swap, unless it is on and the container is burstable in memory."""
    if not node.swap_controller:
        return
    if not node.cgroup_v2:
        resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes
        return
    limit = _swap_limit_bytes(container, node) if may_swap(pod, container, node) else 0
    resources.unified["memory.swap.max"] = str(limit)


def may_swap(pod: Pod, container: Container, node: NodeFacts) -> bool:
    """True if the kernel may swap out memory of the container (KEP-2400)."""
    if not (node.swap_controller and node.cgroup_v2):
        return False
    if node.configuration.memory_swap.swap_behavior != _LIMITED_SWAP or is_critical(pod):
        return False
    request = _memory_request(container)
    limit = _limits(container).get("memory", _NOTHING).value
    return qos_class(pod) is PodQOSClass.BURSTABLE and request != limit


def _swap_limit_bytes(container: Container, node: NodeFacts) -> int:
    """The container's part of the swap is its part of the memory."""
    request, capacity = _memory_request(container), node.memory_capacity_bytes
    if request > capacity:
        return 0
    return request * node.swap_capacity_bytes // capacity


def _has_memory_qos(node: NodeFacts) -> bool:
    return node.settings.gates["MemoryQoS"] and node.cgroup_v2


def _memory_qos(pod: Pod, container: Container, node: NodeFacts) -> dict[str, str]:
    """KEP-2570: throttle before the limit is reached; protect what was asked for.

    A container without a limit is throttled before it has all that pods may have.
    """
    unified = {}
    request, qos = _memory_request(container), qos_class(pod)
    if request and node.configuration.memory_reservation_policy == _TIERED_RESERVATION:
        file = "memory.min" if qos is PodQOSClass.GUARANTEED else "memory.low"
        unified[file] = str(request)
    limit = _limits(container).get("memory", _NOTHING).value
    if request == limit and request:
        return unified
    ceiling = limit or node.allocatable().get("memory", _NOTHING).value
    factor = node.configuration.memory_throttling_factor or DEFAULT_THROTTLING_FACTOR
    throttled_at = request + (ceiling - request) * factor
    high = int(throttled_at) // node.page_size_bytes * node.page_size_bytes
    if high > request:
        unified["memory.high"] = str(high)
    return unified


def _hugepage_limits(
    limits: Mapping[str, Quantity], sizes: tuple[int, ...]
) -> list[cri.HugepageLimit]:
    """A limit for every size of the node: pages that were not asked for cannot be used."""
    asked_for = {
        Quantity(name.removeprefix(HUGEPAGES_PREFIX)).value: quantity.value
        for name, quantity in limits.items()
        if name.startswith(HUGEPAGES_PREFIX)
    }
    return [
        cri.HugepageLimit(page_size=page_size(size), limit=asked_for.get(size, 0)) for size in sizes
    ]


def _unassigned_memory_share(pod: Pod) -> int:
    if pod.spec.resources is None or not pod.spec.resources.requests.get("memory"):
        return 0
    containers_only = evolve(pod, spec=evolve(pod.spec, resources=None, overhead={}))
    assigned = pod_requests(containers_only).get("memory", _NOTHING).value
    unassigned = pod.spec.resources.requests["memory"].value - assigned
    return unassigned // (len(pod.spec.containers) + len(pod.spec.init_containers))


def _memory_request(container: Container) -> int:
    return _requests(container).get("memory", _NOTHING).value


def _requests(container: Container) -> Mapping[str, Quantity]:
    return {} if container.resources is None else container.resources.requests


def _limits(container: Container) -> Mapping[str, Quantity]:
    return {} if container.resources is None else container.resources.limits
