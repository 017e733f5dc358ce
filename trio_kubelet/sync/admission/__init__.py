"""Admission: whether a pod may run on this node beside those that do.

Pure checks in a fixed order; the first that has something against a pod rejects it, with the Go
kubelet's reason and message, as users see them in `kubectl get pods`. A critical pod that only
lacks resources is not rejected: other pods are ended for it (`preemption.py`). What was
admitted once is not asked again, over a restart of the agent either (`was_admitted`).
"""

from trio_kubelet.sync.admission.admission import Admission, was_admitted
from trio_kubelet.sync.admission.admission_result import AdmissionResult, Preemption, Rejection
from trio_kubelet.sync.admission.node_features import (
    TOO_MANY_CONTAINERS,
    with_ephemeral_containers_that_fit,
)
from trio_kubelet.sync.admission.preemption import (
    DISRUPTED,
    EXCEEDED_GRACE_PERIOD,
    NOT_KILLED_IN_TIME,
    PREEMPTING,
    PREEMPTION_MESSAGE,
    WAITING_FOR_ENDING_PODS,
    WAITING_FOR_PREEMPTED_PODS,
)

__all__ = [
    "DISRUPTED",
    "EXCEEDED_GRACE_PERIOD",
    "NOT_KILLED_IN_TIME",
    "PREEMPTING",
    "PREEMPTION_MESSAGE",
    "TOO_MANY_CONTAINERS",
    "WAITING_FOR_ENDING_PODS",
    "WAITING_FOR_PREEMPTED_PODS",
    "Admission",
    "AdmissionResult",
    "Preemption",
    "Rejection",
    "was_admitted",
    "with_ephemeral_containers_that_fit",
]
