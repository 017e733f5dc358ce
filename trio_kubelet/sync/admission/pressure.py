"""Whether a node under pressure takes a pod (API: the conditions MemoryPressure and so on)."""

from trio_kubelet.k8s import NodeConditionType, Pod, PodQOSClass, Taint, TaintEffect
from trio_kubelet.node import Pressures
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resources import qos_class
from trio_kubelet.sync.admission.admission_result import Rejection
from trio_kubelet.sync.admission.tolerations import untolerated

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
    return Rejection(reason=EVICTED, message=f"The node had condition: [{listed}]. ")


def _conditions(pressures: Pressures | None) -> tuple[str, ...]:
    if pressures is None:
        return ()
    held = (
        (NodeConditionType.MEMORY_PRESSURE, pressures.memory),
        (NodeConditionType.DISK_PRESSURE, pressures.disk),
        (NodeConditionType.PID_PRESSURE, pressures.pid),
    )
    return tuple(kind for kind, holds in held if holds)
