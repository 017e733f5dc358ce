"""Which container's log it is, or why there is none, in the Go kubelet's words; pure."""

from trio_kubelet.k8s import ContainerState, ContainerStateTerminated, Pod
from trio_kubelet.server.messages import RequestError

_WAITING_WORDS = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


def is_in_spec(pod: Pod, container: str) -> bool:
    """Whether the pod has a container of that name, of any kind."""
    return any(each.name == container for each in pod.spec.all_containers)


def container_id(pod: Pod, container: str, *, previous: bool) -> str:
    """The id of the container, with its runtime in front. Raises RequestError (400).

    `pod` has its newest status.
    """
    status = pod.status
    every = (
        *status.container_statuses,
        *status.init_container_statuses,
        *status.ephemeral_container_statuses,
    )
    found = next((each for each in every if each.name == container), None)
    what = f'container "{container}" in pod "{pod.metadata.name}"'
    if found is None:
        raise RequestError(400, f"{what} is not available")
    state, last = found.state or ContainerState(), found.last_state or ContainerState()
    if previous:
        if not _id(last.terminated):
            raise RequestError(400, f"previous terminated {what} not found")
        return _id(last.terminated)
    if state.running is not None:
        return found.container_id
    ended = _id(state.terminated) or _id(last.terminated)
    if ended:
        return ended
    if state.terminated is not None or last.terminated is not None:
        raise RequestError(400, f"{what} is terminated")
    if state.waiting is None:
        raise RequestError(400, f"{what} is waiting to start - no logs yet")
    reason = state.waiting.reason
    raise RequestError(400, f"{what} is waiting to start: {_WAITING_WORDS.get(reason, reason)}")


def _id(terminated: ContainerStateTerminated | None) -> str:
    return terminated.container_id if terminated is not None else ""
