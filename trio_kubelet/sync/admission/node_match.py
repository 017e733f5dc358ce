"""The match of a pod with this node: whether it asks for it, and whether it is let in. Pure.

Taints keep a pod off the node, and pressures do, unless it tolerates them.

API: Node.spec.taints, Pod.spec.tolerations; the conditions MemoryPressure, DiskPressure and
PIDPressure.
"""

from collections.abc import Iterable

from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import (
    Node,
    NodeConditionType,
    Pod,
    PodQOSClass,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from trio_kubelet.k8s.node_selector import integer, selects_node
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resources import qos_class
from trio_kubelet.sync.admission.admission_result import Rejection


def matches_node(pod: Pod, node: Node) -> bool:
    """True if node selector and required node affinity hold (API: nodeSelector, affinity)."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    return required is None or selects_node(required, node)


def tolerates(toleration: Toleration, taint: Taint, *, compare: bool = False) -> bool:
    """True if a toleration covers a taint; one without key or effect covers them all.

    `compare` turns on the operators Lt and Gt (KEP-5471): the taint's number is less, or
    greater, than the toleration's.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator or TolerationOperator.EQUAL:
        case TolerationOperator.EXISTS:
            return True
        case TolerationOperator.EQUAL:
            return toleration.value == taint.value
        case TolerationOperator.LT | TolerationOperator.GT as operator if compare:
            return _is_tolerated_value(operator, taint.value, toleration.value)
    return False


def untolerated(
    pod: Pod, taints: Iterable[Taint], *, effect: str, compare: bool = False
) -> Taint | None:
    """The first taint of that effect that the pod does not tolerate."""
    for taint in taints:
        if taint.effect == effect and not any(
            tolerates(toleration, taint, compare=compare) for toleration in pod.spec.tolerations
        ):
            return taint
    return None


def _is_tolerated_value(operator: str, taint: str, toleration: str) -> bool:
    value, bound = integer(taint), integer(toleration)
    if value is None or bound is None:
        return False
    return value < bound if operator == TolerationOperator.LT else value > bound


EVICTED = "Evicted"
_MEMORY_TAINT = Taint(key="node.kubernetes.io/memory-pressure", effect=TaintEffect.NO_SCHEDULE)


def refused_under_pressure(pod: Pod, pressures: Pressures | None) -> Rejection | None:
    """Reject a pod that would make it worse; critical ones keep the node alive and are let in.

    Where only memory is short, only best-effort pods are rejected that do not tolerate that.
    """
    conditions = _conditions(pressures)
    if not conditions or is_critical(pod):
        return None
    if conditions == (NodeConditionType.MEMORY_PRESSURE,):
        if qos_class(pod) is not PodQOSClass.BEST_EFFORT:
            return None
        if untolerated(pod, (_MEMORY_TAINT,), effect=TaintEffect.NO_SCHEDULE) is None:
            return None
    listed = " ".join(conditions)
    return Rejection(reason=EVICTED, message=f"The node had condition: [{listed}]. ", is_paced=True)


def _conditions(pressures: Pressures | None) -> tuple[str, ...]:
    if pressures is None:
        return ()
    held = (
        (NodeConditionType.MEMORY_PRESSURE, pressures.memory),
        (NodeConditionType.DISK_PRESSURE, pressures.disk),
        (NodeConditionType.PID_PRESSURE, pressures.pid),
    )
    return tuple(kind for kind, holds in held if holds)
