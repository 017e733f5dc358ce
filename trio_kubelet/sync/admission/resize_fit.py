"""Decides if a pod that runs may be allocated other resources (KEP-1287): now, later or never."""

from collections.abc import Callable, Collection, Mapping

from attrs import evolve, frozen

from trio_kubelet.k8s import Container, Pod, PodQOSClass, Quantity
from trio_kubelet.k8s.resources import ResourceResizeRestartPolicy
from trio_kubelet.k8s.totals import container_requests, is_sidecar
from trio_kubelet.pod_source import is_static
from trio_kubelet.resources import pod_requests, qos_class
from trio_kubelet.resources.pod_resources import whole_requests
from trio_kubelet.runtime.lifecycle.resize_progress import DEFERRED, INFEASIBLE
from trio_kubelet.sync.admission.admission_result import Shortage
from trio_kubelet.sync.admission.resource_fit import ZERO, number

RESIZABLE = ("cpu", "memory")

_STATIC_POLICIES = {
    "cpu": 'CPU Manager policy "static"',
    "memory": 'Memory Manager policy "Static"',
}

_QOS_ORDER = {
    PodQOSClass.GUARANTEED: 0,
    PodQOSClass.BURSTABLE: 1,
    PodQOSClass.BEST_EFFORT: 2,
}

Amounts = Mapping[str, Quantity]


@frozen(kw_only=True)
class ResizeRefusal:
    """Why a pod is not allocated what it asks for: reason and message of PodResizePending.

    `detail` is one word for the count of infeasible resizes.
    """

    reason: str
    message: str
    detail: str = ""


@frozen(kw_only=True)
class ResizeAdmission:
    """Decides with the node's limits.

    `allocatable` returns what pods may ask for in all, `may_swap` says whether a container of a
    pod may use swap. `pod_level` is the gate InPlacePodLevelResourcesVerticalScaling,
    `init_containers` InPlacePodVerticalScalingInitContainers, which sidecars do not need.
    `static_managers` are the resource managers, `cpu` or `memory`, whose policy is static: what
    they have given to Guaranteed pods and their containers cannot change. `is_whole` says whether
    a pod has what they give as one part.
    """

    allocatable: Callable[[], Amounts]
    may_swap: Callable[[Pod, Container], bool]
    pod_level: bool = True
    init_containers: bool = True
    static_managers: Collection[str] = ()
    is_whole: Callable[[Pod], bool] = lambda _pod: False

    def infeasible(self, pod: Pod, allocated: Pod) -> ResizeRefusal | None:
        """Why a pod can never be given what its spec asks for, whatever others hold.

        `allocated` is the pod with what it holds now. All containers are looked at.
        """
        if is_static(pod):
            return _infeasible("In-place resize of static-pods is not supported", "static_pod")
        if refusal := self._exclusive(pod, allocated):
            return refusal
        if _has_other_qos(pod):
            message = "Pod QoS class may not change as a result of resizing"
            return _infeasible(message, "qos_class_change")
        if self._changes_swap(pod, allocated):
            message = "In-place resize of containers with swap is not supported."
            return _infeasible(message, "swap_limitation")
        if not self.pod_level and pod.spec.resources != allocated.spec.resources:
            message = "InPlacePodLevelResourcesVerticalScaling is disabled"
            return _infeasible(message, "feature_gate_off")
        if not self.init_containers and _changes_init_containers(pod, allocated):
            message = "InPlacePodVerticalScalingInitContainers is disabled"
            return _infeasible(message, "feature_gate_off")
        return None

    def unfit(self, pod: Pod, allocated: Pod, used: Amounts) -> ResizeRefusal | None:
        """Why what a pod asks for does not fit beside what all other pods hold, which is `used`.

        A resource that grows must fit; one that does not is no worse than it was. The sums of its
        containers are those that its spec keeps.
        """
        wanted, held, limits = pod_requests(pod), pod_requests(allocated), self.allocatable()
        growing = [
            name
            for name in RESIZABLE
            if name in limits and wanted.get(name, ZERO) > held.get(name, ZERO)
        ]
        for name in reversed(growing):
            if wanted[name] > limits[name]:
                message = (
                    f"Node didn't have enough capacity: {name}, "
                    f"requested: {number(name, wanted[name])}, "
                    f"capacity: {number(name, limits[name])}"
                )
                return _infeasible(message, "insufficient_node_allocatable")
        for name in growing:
            others = used.get(name, ZERO)
            if others + wanted[name] > limits[name]:
                shortage = Shortage(
                    resource=name,
                    requested=number(name, wanted[name]),
                    used=number(name, others),
                    capacity=number(name, limits[name]),
                )
                return ResizeRefusal(reason=DEFERRED, message=shortage.rejection.message)
        return None

    def _exclusive(self, pod: Pod, allocated: Pod) -> ResizeRefusal | None:
        """The refusal of other CPUs or memory for what may have them alone: containers or a pod."""
        if qos_class(allocated) is not PodQOSClass.GUARANTEED:
            return None
        before, wanted = self._fixed(allocated), self._fixed(pod)
        for resource in self.static_managers:
            if all(
                amounts.get(resource) == before.get(name, {}).get(resource)
                for name, amounts in wanted.items()
            ):
                continue
            message = (
                f"Resize is infeasible for Guaranteed Pods alongside {_STATIC_POLICIES[resource]}"
            )
            return _infeasible(message, f"guaranteed_pod_{resource}_manager_static_policy")
        return None

    def _fixed(self, pod: Pod) -> Mapping[str, Amounts]:
        """The requests that static policies serve, by container; "" is the pod as one part."""
        each = {each.name: container_requests(each) for each in pod.spec.admitted_containers}
        return {**each, "": whole_requests(pod)} if self.is_whole(pod) else each

    def _changes_swap(self, pod: Pod, allocated: Pod) -> bool:
        """True if a container's part of the swap would change while it runs (KEP-2400)."""
        before = {each.name: each for each in allocated.spec.admitted_containers}
        return any(
            _memory_request(each) != _memory_request(before[each.name])
            and not _restarts_for_memory(each)
            and (self.may_swap(pod, each) or self.may_swap(allocated, before[each.name]))
            for each in pod.spec.admitted_containers
        )


def resize_order(pod: Pod, allocated: Pod, pending_since_ns: int | None) -> tuple[object, ...]:
    """The sort key of pods whose resizes are decided at the same time.

    What does not grow comes first, as it always fits and may make room; then by the priority of
    the pod, by its QoS class, and by the time that it has waited.
    """
    wanted, held = pod_requests(pod), pod_requests(allocated)
    grows = _asks_for_more(wanted, held)
    waits_longest_ns = pending_since_ns if pending_since_ns is not None else 2**63
    return (
        grows,
        -(pod.spec.priority or 0),
        _QOS_ORDER[qos_class(pod)],
        waits_longest_ns,
        pod.metadata.key,
    )


def shrinks(pod: Pod, allocated: Pod) -> bool:
    """True if a pod asks for less of a resource than it holds."""
    return _asks_for_more(pod_requests(allocated), pod_requests(pod))


def _asks_for_more(wanted: Amounts, held: Amounts) -> bool:
    return any(wanted.get(name, ZERO) > held.get(name, ZERO) for name in RESIZABLE)


def _infeasible(message: str, detail: str) -> ResizeRefusal:
    return ResizeRefusal(reason=INFEASIBLE, message=message, detail=detail)


def _has_other_qos(pod: Pod) -> bool:
    """True if the spec is of another class than the pod, whose class never changes."""
    anew = evolve(pod, status=evolve(pod.status, qos_class=""))
    return qos_class(anew) is not qos_class(pod)


def _changes_init_containers(pod: Pod, allocated: Pod) -> bool:
    before = {each.name: each.resources for each in allocated.spec.init_containers}
    return any(
        each.resources != before[each.name]
        for each in pod.spec.init_containers
        if not is_sidecar(each)
    )


def _memory_request(container: Container) -> Quantity:
    return container.resources.requests.get("memory", ZERO) if container.resources else ZERO


def _restarts_for_memory(container: Container) -> bool:
    return any(
        policy.resource_name == "memory"
        and policy.restart_policy == ResourceResizeRestartPolicy.RESTART_CONTAINER
        for policy in container.resize_policy
    )
