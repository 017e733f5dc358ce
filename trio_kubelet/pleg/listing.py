"""A listing of all that is in the runtime, put in order, and whether an event says more than it.

Most relists show what the one before showed, and the client then hands out the same entries in
the same tuples. What was made of them is kept, so that such a relist reads no message at all.

The runtime also announces what a pod's own task has done and seen already. Inspecting the pod again
for that would double the calls when many pods start or end.
"""

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.cache import States
from trio_kubelet.runtime.config.names import POD_UID_LABEL
from trio_kubelet.runtime.inspection import STATES
from trio_kubelet.runtime.observed import ObservedPod, ObservedState


@frozen(kw_only=True)
class ListedPod:
    """The state that a listing shows of one pod."""

    sandboxes: tuple[cri.PodSandbox, ...] = ()
    containers: tuple[cri.Container, ...] = ()

    @property
    def namespace(self) -> str:
        """The pod's namespace; empty where no sandbox tells."""
        return next((sandbox.metadata.namespace for sandbox in self.sandboxes), "")


NOTHING_LISTED = ListedPod()


@frozen(kw_only=True)
class Listing:
    """All entries; by the UIDs of their pods, also the entries' ids and states.

    Entries without a pod's UID are nobody's, and so are those of UIDs that are no names of folders
    (`refused`): whoever made them, it was no kubelet.
    """

    sandboxes: tuple[cri.PodSandbox, ...] = ()
    containers: tuple[cri.Container, ...] = ()
    pods: Mapping[str, ListedPod] = field(factory=dict)
    states: Mapping[str, States] = field(factory=dict)
    refused: frozenset[str] = frozenset()

    def updated(
        self, sandboxes: tuple[cri.PodSandbox, ...], containers: tuple[cri.Container, ...]
    ) -> "Listing":
        """Return this listing if the new one has the very same entries, else the new one."""
        if sandboxes is self.sandboxes and containers is self.containers:
            return self
        pods = dict(_by_pod(sandboxes, containers))
        refused = frozenset(uid for uid in pods if not is_path_part(uid))
        for uid in refused:
            del pods[uid]
        states = {uid: _states(pod.sandboxes, pod.containers) for uid, pod in pods.items()}
        return Listing(
            sandboxes=sandboxes, containers=containers, pods=pods, states=states, refused=refused
        )


def _by_pod(
    sandboxes: Iterable[cri.PodSandbox], containers: Iterable[cri.Container]
) -> Mapping[str, ListedPod]:
    grouped: dict[str, tuple[list[cri.PodSandbox], list[cri.Container]]] = {}
    for sandbox in sandboxes:
        grouped.setdefault(sandbox.metadata.uid, ([], []))[0].append(sandbox)
    for container in containers:
        uid = container.labels.get(POD_UID_LABEL, "")
        grouped.setdefault(uid, ([], []))[1].append(container)
    grouped.pop("", None)
    return {
        uid: ListedPod(sandboxes=tuple(s), containers=tuple(c)) for uid, (s, c) in grouped.items()
    }


def _states(sandboxes: Iterable[cri.PodSandbox], containers: Iterable[cri.Container]) -> States:
    ready = cri.PodSandboxState.SANDBOX_READY
    return frozenset(
        [(s.id, "ready" if s.state == ready else "notready") for s in sandboxes]
        + [(c.id, STATES.get(c.state, ObservedState.UNKNOWN).value) for c in containers]
    )


_AT_LEAST_STARTED = (ObservedState.RUNNING, ObservedState.EXITED)


@frozen
class Announcement:
    """The change, and to which container or sandbox, by its id."""

    id: str
    type: cri.ContainerEventType


def is_news(told: Announcement, known: ObservedPod) -> bool:
    """True if the pod may look different from what is known of it.

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
