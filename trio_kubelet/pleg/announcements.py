"""Whether an event of the runtime says anything new. Pure.

The runtime also announces what a pod's own task has done and seen already. Inspecting the pod again
for that would double the calls when many pods start or end.
"""

from attrs import frozen

from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.observed import ObservedPod, ObservedState

_AT_LEAST_STARTED = (ObservedState.RUNNING, ObservedState.EXITED)


@frozen
class Announcement:
    """What happened, and to which container or sandbox, by its id."""

    id: str
    type: cri.ContainerEventType


def is_news(told: Announcement, known: ObservedPod) -> bool:
    """Whether the pod may look different from what is known of it.

    What has started, stopped or been deleted does so once under its id.
    """
    container = next((c for c in known.containers if c.id == told.id), None)
    sandbox = next((s for s in known.sandboxes if s.id == told.id), None)
    if container is None and sandbox is None:
        return told.type != cri.ContainerEventType.CONTAINER_DELETED_EVENT
    if told.type == cri.ContainerEventType.CONTAINER_CREATED_EVENT:
        return False
    if told.type == cri.ContainerEventType.CONTAINER_STARTED_EVENT:
        return container is not None and container.state not in _AT_LEAST_STARTED
    if told.type == cri.ContainerEventType.CONTAINER_STOPPED_EVENT and sandbox is not None:
        return sandbox.ready
    if told.type == cri.ContainerEventType.CONTAINER_STOPPED_EVENT and container is not None:
        return container.state is not ObservedState.EXITED
    return True
