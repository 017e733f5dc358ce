"""The flight recorder, and the events that go into it."""

import pytest
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from trio_kubelet.k8s import ObjectMeta, Pod
from trio_kubelet.telemetry import EventRecorder, EventType, Journal, Transition
from trio_kubelet.telemetry.events import RecordedEvent

POD = Pod(metadata=ObjectMeta(name="web", namespace="default"))


async def test_a_transition_has_its_time_and_how_long_the_state_lasted(
    mock_clock: MockClock,
) -> None:
    clock = TrioClock(epoch_ns=0)
    journal = Journal(clock)
    mock_clock.jump(5)
    journal.transition(
        "pod", "default/web", Transition(source="A", event="E", target="B", duration_seconds=4.5)
    )
    (entry,) = journal.entries()
    assert (entry.time_ns, entry.source, entry.target) == (5_000_000_000, "A", "B")
    assert entry.duration_seconds == 4.5


async def test_the_ring_forgets_the_oldest_and_counts_them() -> None:
    journal = Journal(TrioClock(), capacity=3)
    for number in range(5):
        journal.note("sync", "key", str(number))
    assert [entry.event for entry in journal.entries()] == ["2", "3", "4"]
    assert journal.dropped == 2


async def test_a_pods_entries_are_its_own_and_its_containers() -> None:
    journal = Journal(TrioClock())
    for key in ("default/web", "default/web/c", "default/web-2", "other/web"):
        journal.note("sync", key, "seen")
    assert [entry.key for entry in journal.entries("default/web")] == [
        "default/web",
        "default/web/c",
    ]


async def test_an_event_goes_to_the_journal_and_to_all_who_are_told() -> None:
    journal = Journal(TrioClock())
    recorder = EventRecorder(journal, "node")
    seen: list[RecordedEvent] = []
    recorder.on_event.add(seen.append)
    recorder.pod(POD, EventType.WARNING, "Failed", "Error: no", container="c")
    recorder.node(EventType.NORMAL, "Starting", "Starting kubelet.")
    assert [(entry.key, entry.event, entry.cause) for entry in journal.entries()] == [
        ("default/web/c", "Failed", "Error: no"),
        ("node", "Starting", "Starting kubelet."),
    ]
    assert [event.container for event in seen] == ["c", ""]


async def test_who_fails_when_told_of_an_event_fails_nobody_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorder = EventRecorder(Journal(TrioClock()), "node")
    seen: list[RecordedEvent] = []

    def fail(event: RecordedEvent) -> None:
        raise RuntimeError(event.reason)

    recorder.on_event.add(fail)
    recorder.on_event.add(seen.append)
    recorder.node(EventType.NORMAL, "Starting", "Starting kubelet.")
    assert [event.reason for event in seen] == ["Starting"]
    assert "event handling failed" in capsys.readouterr().out
