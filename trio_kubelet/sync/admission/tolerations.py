"""Taints and tolerations (API: Node.spec.taints, Pod.spec.tolerations)."""

from collections.abc import Iterable

from trio_kubelet.k8s import Pod, Taint, Toleration, TolerationOperator
from trio_kubelet.sync.admission.node_affinity import integer


def tolerates(toleration: Toleration, taint: Taint, *, compare: bool = False) -> bool:
    """Whether a toleration covers a taint; one without key or effect covers them all.

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
            return _compared(operator, taint.value, toleration.value)
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


def _compared(operator: str, taint: str, toleration: str) -> bool:
    value, bound = integer(taint), integer(toleration)
    if value is None or bound is None:
        return False
    return value < bound if operator == TolerationOperator.LT else value > bound
