"""What the statuses of pods may never say: rules about statuses alone."""

from collections.abc import Iterator

from trio_kubelet.k8s import Pod, PodStatus
from trio_kubelet.k8s.totals import is_sidecar

PHASES = ("Pending", "Running", "Succeeded", "Failed")
ENDS = ("Succeeded", "Failed")


def steps_back(before: PodStatus, after: PodStatus, *, begins_anew: bool) -> Iterator[str]:
    """What a status took back, unless its pod may be initialized once more."""
    back = PHASES.index(after.phase) < PHASES.index(before.phase) and not begins_anew
    if back or (before.phase in ENDS and after.phase != before.phase):
        yield f"phase went from {before.phase} to {after.phase}"
    counts = _restarts(before)
    for name, count in _restarts(after).items():
        if count < counts.get(name, 0):
            yield f"restarts of {name} went from {counts[name]} to {count}"


def _restarts(status: PodStatus) -> dict[str, int]:
    containers = (*status.init_container_statuses, *status.container_statuses)
    return {container.name: container.restart_count for container in containers}


def serves_without_being_ready(pod: Pod) -> Iterator[str]:
    """A pod that Services send requests to, although a container of it is not ready for them."""
    status = pod.status
    conditions = {each.type: each.status for each in status.conditions}
    if conditions.get("Ready") != "True" or not status.pod_ip:
        return
    name = pod.metadata.name
    if conditions.get("ContainersReady") != "True":
        yield f"the API shows {name} as ready, and its containers not"
    sidecars = {c.name for c in pod.spec.init_containers if is_sidecar(c)}
    serving = [s for s in status.init_container_statuses if s.name in sidecars]
    for shown in (*serving, *status.container_statuses):
        if not shown.ready or shown.state is None or shown.state.running is None:
            yield f"the API shows {name} as ready, and its container {shown.name} is not"
