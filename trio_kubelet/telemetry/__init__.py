"""What the agent tells of itself: the journal (flight recorder), events and logs."""

from trio_kubelet.telemetry.events import EventRecorder, EventSink, EventType, RecordedEvent
from trio_kubelet.telemetry.journal import Entry, Journal, Transition

__all__ = [
    "Entry",
    "EventRecorder",
    "EventSink",
    "EventType",
    "Journal",
    "RecordedEvent",
    "Transition",
]
