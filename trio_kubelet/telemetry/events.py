"""Events as users of Kubernetes know them: `Pulled`, `Started`, `BackOff`, `FailedMount`.

Parts record events here and never ask where they go. Without an API server they go to the log
and to the journal; with one, the API part takes them as well. The reasons and the
wording are those of the Go kubelet.
"""

from collections.abc import Mapping
from enum import StrEnum

import structlog
from attrs import define, field, frozen

from trio_kubelet.k8s import PersistentVolume, PersistentVolumeClaim, Pod
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.telemetry.journal import Journal

log = structlog.get_logger("events")

NO_ANNOTATIONS: Mapping[str, str] = {}

EVENT = "event"
"""The kind of an event's entry in the journal."""


class EventType(StrEnum):
    """The two types of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@frozen(kw_only=True)
class RecordedEvent:
    """One event about a pod, a claim, a persistent volume, or about the node if all are None.

    `container` is the name of the container it is about, empty for the pod as a whole.
    `caused_by_pod`: it is about the node, on account of what a pod asks for.
    """

    pod: Pod | None
    type: EventType
    reason: str
    message: str
    container: str = ""
    annotations: dict[str, str] = field(factory=dict)
    caused_by_pod: bool = False
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None


@define(eq=False)
class EventRecorder:
    """Writes events to the log and the journal, and hands them to `on_event`."""

    _journal: Journal
    _node_name: str
    on_event: Callbacks[[RecordedEvent]] = field(init=False, factory=Callbacks)

    def pod(
        self,
        pod: Pod,
        kind: EventType,
        reason: str,
        message: str,
        *,
        container: str = "",
        annotations: Mapping[str, str] = NO_ANNOTATIONS,
    ) -> None:
        """Record an event about a pod or about one of its containers."""
        key = f"{pod.metadata.key}/{container}" if container else pod.metadata.key
        event = RecordedEvent(
            pod=pod,
            type=kind,
            reason=reason,
            message=message,
            container=container,
            annotations=dict(annotations),
        )
        self._record(key, event)

    def claim(
        self, claim: PersistentVolumeClaim, kind: EventType, reason: str, message: str
    ) -> None:
        """Record an event about a claim on a volume."""
        event = RecordedEvent(pod=None, claim=claim, type=kind, reason=reason, message=message)
        self._record(f"claim {claim.metadata.key}", event)

    def volume(self, volume: PersistentVolume, kind: EventType, reason: str, message: str) -> None:
        """Record an event about a persistent volume."""
        event = RecordedEvent(pod=None, volume=volume, type=kind, reason=reason, message=message)
        self._record(f"volume {volume.metadata.name}", event)

    def node(
        self, kind: EventType, reason: str, message: str, *, caused_by_pod: bool = False
    ) -> None:
        """Record an event about the node itself, or about the node on account of a pod."""
        event = RecordedEvent(
            pod=None, type=kind, reason=reason, message=message, caused_by_pod=caused_by_pod
        )
        self._record(self._node_name, event)

    def _record(self, key: str, event: RecordedEvent) -> None:
        write = log.warning if event.type is EventType.WARNING else log.info
        write("event", object=key, type=str(event.type), reason=event.reason, message=event.message)
        self._journal.note(EVENT, key, event.reason, event.message, type=str(event.type))
        try:
            self.on_event.call(event)
        except Exception:
            log.exception("event handling failed", object=key, reason=event.reason)
