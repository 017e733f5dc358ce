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


async def test_a_noisy_pod_drives_out_its_own_story_alone() -> None:
    journal = Journal(TrioClock(), capacity=20)
    for number in range(5):
        journal.note("sync", "default/quiet", str(number))
        journal.note("sync", "default/quiet/c", str(number))
    for number in range(500):
        journal.note("sync", f"default/noisy/c{number % 3}", str(number))
    # Each has half of the room, but for the one entry by which the noisy one has more.
    assert len(list(journal.entries("default/quiet"))) == 9
    assert [entry.event for entry in journal.entries("default/noisy")] == [
        str(number) for number in range(489, 500)
    ]
    assert journal.dropped == 490


async def test_pods_that_come_later_have_room_too() -> None:
    journal = Journal(TrioClock(), capacity=100)
    for pod in range(50):
        for number in range(10):
            journal.note("sync", f"default/pod-{pod}", str(number))
    kept = [len(list(journal.entries(f"default/pod-{pod}"))) for pod in range(50)]
    assert sum(kept) == 100
    assert set(kept) <= {1, 2, 3}


async def test_texts_are_cut() -> None:
    journal = Journal(TrioClock())
    journal.note("probe", "default/web/c", "Failed", "x" * 100_000, output="y" * 100_000)
    made = Transition(
        source="a", event="e", target="b", cause="x" * 5000, details={"d": "y" * 5000}
    )
    journal.transition("probe", "default/web/c", made)
    journal.note("volume", "y" * 5000, "Staged", "x" * 5000)
    for entry in journal.entries():
        assert len(entry.key) <= 1025
        assert {len(entry.cause), *map(len, entry.details.values())} == {1025}


async def test_long_entries_count_as_several_and_memory_is_bounded() -> None:
    journal = Journal(TrioClock(), capacity=20)
    journal.note("sync", "default/quiet", "seen")
    for number in range(100):
        journal.note("sync", f"default/loud-{number % 3}", "said", "🌊" * 2000, more="x" * 2000)
    left = list(journal.entries())
    assert left[0].key == "default/quiet"
    assert sum(len(each.cause.encode()) for each in left) < 20 * 1024
    assert journal.dropped == 101 - len(left)
    for number in range(20):
        journal.note("sync", f"default/{number}", "seen")
    assert [each.key for each in journal.entries()] == [f"default/{n}" for n in range(20)]
