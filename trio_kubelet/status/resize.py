"""A resize that waits, as the status of a pod tells of it, and the words of its event."""

from attrs import evolve

from trio_kubelet.k8s import Container, Pod, PodCondition, PodConditionType, PodStatus
from trio_kubelet.k8s.codec import encode
from trio_kubelet.runtime.config.go_json import go_json


def pending_resize(status: PodStatus) -> PodCondition | None:
    """Return the condition PodResizePending without its time; None if nothing waits."""
    kind = PodConditionType.RESIZE_PENDING
    pending = (condition for condition in status.conditions if condition.type == kind)
    return next((evolve(each, last_transition_time=None) for each in pending), None)


def resize_message(pod: Pod, reason: str, why: str) -> str:
    """Return the message of the event: what the spec wants, as JSON, and why it is not done."""
    init, regular = map(_listed, (pod.spec.init_containers, pod.spec.containers))
    summary = {
        **({"initContainers": init} if init else {}),
        **({"containers": regular} if regular else {}),
        "generation": pod.metadata.generation or 0,
        "error": why,
    }
    return f"Pod resize {reason}: {go_json(summary)}"


def _listed(containers: tuple[Container, ...]) -> list[object]:
    return [
        {"name": each.name, "resources": encode(each.resources) if each.resources else {}}
        for each in containers
    ]
