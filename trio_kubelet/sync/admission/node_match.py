"""The match of a pod with this node: whether it asks for it, and whether it is let in. Pure.

Node selectors and required node affinity: terms are alternatives, the requirements of a term must
all hold, and a term without any holds nowhere. A requirement that is malformed (no values, no
number) never holds. Taints keep a pod off the node, and pressures do, unless it tolerates them.

API: Node.spec.taints, Pod.spec.tolerations; the conditions MemoryPressure, DiskPressure and
PIDPressure.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from trio_kubelet.eviction import Pressures
from trio_kubelet.k8s import (
    Node,
    NodeConditionType,
    NodeSelectorOperator,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodQOSClass,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resources import qos_class
from trio_kubelet.sync.admission.admission_result import Rejection

_INTEGER = re.compile(r"[+-]?\d{1,100}", re.ASCII)
_LARGEST = 2**63 - 1

Values = tuple[str, ...]


def matches_node(pod: Pod, node: Node) -> bool:
    """True if node selector and required node affinity hold (API: nodeSelector, affinity)."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None:
        return True
    return any(_term_holds(term, node) for term in required.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(
        _label_holds(requirement, node.metadata.labels) for requirement in term.match_expressions
    ) and all(_field_holds(requirement, node) for requirement in term.match_fields)


def _label_holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    holds = _OPERATORS.get(requirement.operator)
    return holds is not None and holds(labels.get(requirement.key), requirement.values)


def _field_holds(requirement: NodeSelectorRequirement, node: Node) -> bool:
    """Fields know only In and NotIn with one value; the only field of a node is its name."""
    if len(requirement.values) != 1 or requirement.operator not in _FIELD_OPERATORS:
        return False
    actual = node.metadata.name if requirement.key == "metadata.name" else ""
    return _OPERATORS[requirement.operator](actual, requirement.values)


def integer(text: str) -> int | None:
    """Read a whole number of 64 bits; None for anything else."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None


def _compared(compare: Callable[[int, int], bool]) -> Callable[[str | None, Values], bool]:
    def holds(actual: str | None, values: Values) -> bool:
        if actual is None or len(values) != 1:
            return False
        label, bound = integer(actual), integer(values[0])
        return label is not None and bound is not None and compare(label, bound)

    return holds


_OPERATORS: Mapping[str, Callable[[str | None, Values], bool]] = {
    NodeSelectorOperator.IN: lambda actual, values: actual in values,
    NodeSelectorOperator.NOT_IN: lambda actual, values: bool(values) and actual not in values,
    NodeSelectorOperator.EXISTS: lambda actual, values: not values and actual is not None,
    NodeSelectorOperator.DOES_NOT_EXIST: lambda actual, values: not values and actual is None,
    NodeSelectorOperator.GT: _compared(int.__gt__),
    NodeSelectorOperator.LT: _compared(int.__lt__),
}
_FIELD_OPERATORS = (NodeSelectorOperator.IN, NodeSelectorOperator.NOT_IN)


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
    return Rejection(
        reason=EVICTED, message=f"The node had condition: [{listed}]. ", for_pressure=True
    )


def _conditions(pressures: Pressures | None) -> tuple[str, ...]:
    if pressures is None:
        return ()
    held = (
        (NodeConditionType.MEMORY_PRESSURE, pressures.memory),
        (NodeConditionType.DISK_PRESSURE, pressures.disk),
        (NodeConditionType.PID_PRESSURE, pressures.pid),
    )
    return tuple(kind for kind, holds in held if holds)
