"""A pod's status as of now, as one pure function of what is known.

Fields that are not the node's to set (nominatedNodeName, claims) are passed on as the API has
them. What is first seen is kept: the start time, the pod's addresses after its sandbox has gone,
and the reason and message of the phase for as long as the phase stays what it is.
"""

from collections.abc import Iterable

from attrs import evolve

from trio_kubelet.k8s import (
    TERMINAL_PHASES,
    ContainerStatus,
    HostIP,
    Pod,
    PodIP,
    PodPhase,
    PodStatus,
    ResourceRequirements,
    Time,
)
from trio_kubelet.resources import pod_limits, pod_requests, qos_class
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.node_facts import by_family
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.status.conditions import others_conditions, pod_conditions
from trio_kubelet.status.container_statuses import container_statuses, without_open_ends
from trio_kubelet.status.context import (
    Failure,
    NodeIdentity,
    PodStatusContext,
    StatusContext,
)
from trio_kubelet.status.phase import phase_of_conditions, pod_phase


def pod_status(pod: Pod, observed: ObservedPod, context: PodStatusContext) -> PodStatus:
    """The status of a pod whose resources are those that it was allocated."""
    context = evolve(context, previous=_final(pod, context.previous))
    previous, failure, now_ns = context.previous, context.failure, context.now_ns
    if (failure is not None and failure.rejected) or _was_rejected(pod, previous, observed):
        return _rejected_status(pod, observed, previous, failure, now_ns)
    recursive = _runtime_handler(pod, observed) in context.node.recursive_read_only
    seen = container_statuses(
        StatusContext(pod=pod, observed=observed, of_pod=context, recursive_read_only=recursive)
    )
    statuses = without_open_ends(pod, seen) if context.stopped else seen
    phase = pod_phase(pod, statuses, observed, context)
    words_phase = phase_of_conditions(pod, seen, observed, context)
    told = _reason_of_phase(phase, previous, failure)
    host_ips = context.node.host_ips[:2]
    pod_ips = _pod_ips(pod, observed, previous, context.node)
    requests = pod_requests(pod)
    return evolve(
        pod.status,
        phase=phase.value,
        reason=told.reason,
        message=told.message,
        conditions=pod_conditions(pod, seen, observed, phase=words_phase, context=context),
        init_container_statuses=statuses.init,
        container_statuses=_by_name(statuses.regular),
        ephemeral_container_statuses=_by_name(statuses.ephemeral),
        host_ip=host_ips[0] if host_ips else "",
        host_ips=tuple(HostIP(ip=ip) for ip in host_ips),
        pod_ip=pod_ips[0] if pod_ips else "",
        pod_ips=tuple(PodIP(ip=ip) for ip in pod_ips),
        qos_class=qos_class(pod).value,
        start_time=_start_time(pod, observed, previous, now_ns),
        observed_generation=pod.metadata.generation or None,
        allocated_resources=requests,
        resources=ResourceRequirements(requests=requests, limits=pod_limits(pod)),
        resize="",
    )


def _runtime_handler(pod: Pod, observed: ObservedPod) -> str | None:
    """The handler of the pod's sandbox; None if it is to get another one than the default."""
    if observed.sandboxes:
        return observed.sandboxes[0].runtime_handler
    return None if pod.spec.runtime_class_name else ""


def _by_name(statuses: Iterable[ContainerStatus]) -> tuple[ContainerStatus, ...]:
    """In the order that clients know; only init containers have one of their own."""
    return tuple(sorted(statuses, key=lambda status: status.name))


def _rejected_status(
    pod: Pod, observed: ObservedPod, previous: PodStatus, failure: Failure | None, now_ns: int
) -> PodStatus:
    """The status of a pod of which nothing was ever to run: why, and nothing of containers.

    Clients show the reason only where no container has one of its own.
    """
    told = _reason_of_phase(PodPhase.FAILED, previous, failure)
    return evolve(
        pod.status,
        phase=PodPhase.FAILED.value,
        reason=told.reason,
        message=told.message,
        conditions=others_conditions(pod, previous),
        qos_class=qos_class(pod).value,
        start_time=_start_time(pod, observed, previous, now_ns),
        observed_generation=pod.metadata.generation or None,
    )


def _was_rejected(pod: Pod, previous: PodStatus, observed: ObservedPod) -> bool:
    """True if an earlier agent rejected the pod: it failed, and never had a container."""
    failed = previous.phase == pod.status.phase == PodPhase.FAILED
    return failed and not (previous.container_statuses or observed.containers)


def _final(pod: Pod, previous: PodStatus) -> PodStatus:
    """The previous status; if only the API knows that the pod is over, with the end it tells."""
    told = pod.status
    if told.phase not in TERMINAL_PHASES or previous.phase in TERMINAL_PHASES:
        return previous
    return evolve(previous, phase=told.phase, reason=told.reason, message=told.message)


def _reason_of_phase(phase: PodPhase, previous: PodStatus, failure: Failure | None) -> Reason:
    if phase == previous.phase:
        return Reason(reason=previous.reason, message=previous.message)
    if phase is PodPhase.FAILED and failure is not None:
        return Reason(reason=failure.reason, message=failure.message)
    return Reason(reason="")


def _start_time(pod: Pod, observed: ObservedPod, previous: PodStatus, now_ns: int) -> Time:
    """The time at which the node first saw the pod; for a forgotten one, its sandbox's start."""
    if known := previous.start_time or pod.status.start_time:
        return known
    return Time.from_ns(min((now_ns, *(s.created_at for s in observed.sandboxes if s.created_at))))


def _pod_ips(
    pod: Pod, observed: ObservedPod, previous: PodStatus, node: NodeIdentity
) -> tuple[str, ...]:
    """The pod's addresses: one of the node's own family, then one of the other."""
    if pod.spec.host_network:
        return by_family(node.host_ips, node.host_ips)
    known = tuple(entry.ip for entry in previous.pod_ips)
    return by_family(observed.ips, node.host_ips) or by_family(known, node.host_ips)
