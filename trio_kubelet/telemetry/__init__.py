"""The agent's accounts of itself: the journal (flight recorder), events and logs."""

from trio_kubelet.telemetry.events import EventRecorder, EventType
from trio_kubelet.telemetry.journal import Journal, Transition, Walk

__all__ = [
    "EventRecorder",
    "EventType",
    "Journal",
    "Transition",
    "Walk",
]
