"""The choice of the pods that make way for a critical one.

Those are chosen whose end does the least harm: as few Guaranteed pods as possible, then as few
Burstable, then BestEffort; within a class those whose requests come closest to what is missing,
and of two that come equally close the smaller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from trio_kubelet.errors import UNEXPECTED_ADMISSION_ERROR
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.pod_source import is_critical
from trio_kubelet.resources import qos_class
from trio_kubelet.sync.admission.admission_result import Preemption, Rejection, Shortage
from trio_kubelet.sync.admission.resource_fit import request

PREEMPTING = "Preempting"
"""The reason of the victims' event and status."""

PREEMPTION_MESSAGE = "Preempted in order to admit critical pod"
"""The message of the victims' event and status."""

DISRUPTED = "Pod was preempted by Kubelet to accommodate a critical pod."
"""The message of the victims' condition DisruptionTarget."""

WAITING_FOR_ENDING_PODS = "WaitingForEndingPods"
"""The reason of the event of a pod that fits once others, which end anyway, are gone."""

WAITING_FOR_PREEMPTED_PODS = "WaitingForPreemptedPods"
"""The reason of the event of a pod that waits until they are gone; none of the Go kubelet's."""

EXCEEDED_GRACE_PERIOD = "ExceededGracePeriod"
NOT_KILLED_IN_TIME = "Container runtime did not kill the pod within specified grace period."

Missing = Mapping[str, int]
"""The amounts of resources that are still to be found, in the numbers of shortages; none is 0."""


class _TooLittleError(Exception):
    """All pods that may be preempted do not hold what is missing."""

    def __init__(self, missing: Missing) -> None:
        told = "".join(f"(res: {name}, q: {amount}), " for name, amount in missing.items())
        super().__init__(f"no set of running pods found to reclaim resources: [{told}]")


def preempt(
    pod: Pod, others: Iterable[Pod], shortages: Sequence[Shortage]
) -> Preemption | Rejection:
    """Find the pods that make way for a critical one, or reject it if that is not enough."""
    missing = {shortage.resource: shortage.missing for shortage in shortages}
    try:
        victims = _victims(pod, others, missing)
    except _TooLittleError as error:
        return Rejection(
            reason=UNEXPECTED_ADMISSION_ERROR,
            message="Unexpected error while attempting to recover from admission failure: "
            f"preemption: error finding a set of pods to preempt: {error}",
        )
    return Preemption(victims=victims, resource=shortages[0].resource)


def _victims(pod: Pod, others: Iterable[Pod], missing: Missing) -> tuple[Pod, ...]:
    """Each class gives only what is missing when all of the humbler classes have gone."""
    candidates = [other for other in others if _may_preempt(pod, other)]
    best_effort, burstable, guaranteed = (
        [other for other in candidates if qos_class(other) is qos]
        for qos in (PodQOSClass.BEST_EFFORT, PodQOSClass.BURSTABLE, PodQOSClass.GUARANTEED)
    )
    if too_little := _without(missing, candidates):
        raise _TooLittleError(too_little)
    chosen = _closest(guaranteed, _without(missing, (*best_effort, *burstable)))
    chosen = _closest(burstable, _without(missing, (*best_effort, *chosen))) + chosen
    return _closest(best_effort, _without(missing, chosen)) + chosen


def _may_preempt(pod: Pod, other: Pod) -> bool:
    if is_critical(pod) and not is_critical(other):
        return True
    own, others = pod.spec.priority, other.spec.priority
    return own is not None and others is not None and own > others


def _closest(pods: Sequence[Pod], missing: Missing) -> tuple[Pod, ...]:
    """Pods that hold what is missing, chosen one by one, the closest to it first."""
    left, chosen = list(pods), []
    while missing:
        if not left:
            raise _TooLittleError(missing)
        best = min(left, key=_by_distance_and_size(missing))
        left.remove(best)
        chosen.append(best)
        missing = _without(missing, (best,))
    return tuple(chosen)


def _without(missing: Missing, pods: Iterable[Pod]) -> Missing:
    """The amounts that are still missing when these pods are gone."""
    gone = tuple(pods)
    rest = {
        name: amount - sum(request(pod, name) for pod in gone) for name, amount in missing.items()
    }
    return {name: amount for name, amount in rest.items() if amount > 0}


def _by_distance_and_size(missing: Missing) -> Callable[[Pod], tuple[float, int, int]]:
    """Each resource counts by the share that the pod would leave missing, whatever its size."""

    def key(pod: Pod) -> tuple[float, int, int]:
        shares = (
            max(0.0, (amount - request(pod, name)) / amount) for name, amount in missing.items()
        )
        distance = sum(share**2 for share in shares)
        return (distance, request(pod, "memory"), request(pod, "cpu"))

    return key
