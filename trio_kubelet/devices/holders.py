"""The devices of containers that run, told by the runtime's record of them.

The checkpoint may be damaged while containers run on with their devices, and no device is to have
two users. So each container is made with an annotation of its devices (`holding`), and an agent
that starts takes them from there where the checkpoint has lost them (`DeviceHolders.recover`).

A container of the Go kubelet has no such annotation. While one runs that is older than the damage
and has lost its record, nobody knows which devices it has, and its resources are in doubt: none of
their devices is handed out until it has ended.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

import structlog
from attrs import evolve, field, frozen

from trio_kubelet.devices.allocation import ContainerAllocation
from trio_kubelet.devices.checkpoint import DeviceRecord, held_text, parsed_held
from trio_kubelet.devices.choice import pod_demands
from trio_kubelet.devices.records import DeviceRecords
from trio_kubelet.k8s import Pod

log = structlog.get_logger("devices")

ANNOTATION = "trio-kubelet.container.devices"
MAX_BYTES = 64 * 1024
"""Of an annotation; a container with more is as one of the Go kubelet."""


@frozen(kw_only=True)
class RunningContainer:
    """A container that runs, as the runtime has it."""

    pod_uid: str
    name: str
    created_at_ns: int
    annotations: Mapping[str, str] = field(factory=dict)


def holding(
    allocation: ContainerAllocation, records: Collection[DeviceRecord]
) -> ContainerAllocation:
    """Return what a container gets with the annotation of its devices.

    The agent alone sets it: a plugin's answer may have one of the same key.
    """
    annotations = {**allocation.annotations}
    annotations.pop(ANNOTATION, None)
    text = held_text(records)
    if records and len(text.encode(errors="replace")) <= MAX_BYTES:
        annotations[ANNOTATION] = text
    return evolve(allocation, annotations=annotations)


class DeviceHolders:
    """Owner of what is in doubt: for pods, the containers whose devices nobody knows.

    Of a pod that no source has told of yet it is not known either which resources those are of.
    """

    def __init__(self, records: DeviceRecords) -> None:
        self._records = records
        self._doubtful: dict[str, frozenset[str]] = {}
        self._resources: dict[str, frozenset[str]] = {}

    def recover(self, running: Iterable[RunningContainer]) -> None:
        """Take up what containers have that run. Once, before the first pod.

        A container that is made anew has its devices allocated anew: what the plugin answered is
        not known any more.
        """
        for container in running:
            text = container.annotations.get(ANNOTATION)
            try:
                held = parsed_held(container.pod_uid, container.name, text) if text else None
            except ValueError as error:
                log.warning(
                    "devices of a container cannot be read",
                    uid=container.pod_uid,
                    container=container.name,
                    error=str(error),
                )
                held = None
            if held is not None:
                for record in held:
                    self._take_up(record)
            elif container.created_at_ns <= self._records.damaged_at_ns:
                names = self._doubtful.get(container.pod_uid, frozenset())
                self._doubtful[container.pod_uid] = names | {container.name}

    def _take_up(self, record: DeviceRecord) -> None:
        known = self._records.get(record.pod_uid, record.container, record.resource)
        if known is not None and known.ids == record.ids:
            return
        log.warning(
            "devices of a running container were not recorded",
            uid=record.pod_uid,
            container=record.container,
            resource=record.resource,
            devices=sorted(record.ids),
        )
        self._records.put(record)
        self._records.know(record.resource)

    def look(self, pod: Pod, running: Collection[str], is_device: Callable[[str], bool]) -> bool:
        """Take note of a pod's resources, and of its containers that run; True if less is in doubt.

        A container that has a record of a resource has no other devices of it.
        """
        uid, before = pod.metadata.uid, self._doubtful.get(pod.metadata.uid)
        if before is None:
            return False
        was = self._resources.get(uid)
        names = before & frozenset(running)
        resources = frozenset(
            demand.resource
            for demand in pod_demands(pod, is_device)
            if demand.container in names
            and self._records.get(uid, demand.container, demand.resource) is None
        )
        if not resources:
            return self.forget(uid)
        self._doubtful[uid], self._resources[uid] = names, resources
        return was != resources

    def forget(self, uid: str) -> bool:
        """Nothing of a pod runs any more; True if something of it was in doubt."""
        self._resources.pop(uid, None)
        return self._doubtful.pop(uid, None) is not None

    def in_doubt(self, resource: str) -> AbstractSet[str]:
        """The UIDs of the pods that may have any device of a resource."""
        return {
            uid
            for uid in self._doubtful
            if uid not in self._resources or resource in self._resources[uid]
        }
