"""A pod's part of the journal, read."""

from datetime import UTC, datetime
from typing import Any

import pytest

from trio_kubelet.cli.timeline import duration, incarnations, read_history, shorten_ids

START_NS = 1_767_225_600_000_000_000
KEY = "default/web-n"


def entry(
    at: float, kind: str, event: str, source: str = "", target: str = "", **fields: Any
) -> dict[str, Any]:
    of = fields.pop("of", "main")
    return {
        "time_ns": START_NS + round(at * 1e9),
        "kind": kind,
        "key": f"{KEY}/{of}" if of else KEY,
        "event": event,
        "source": source,
        "target": target,
        "cause": "",
        "duration_seconds": None,
        "details": {},
        **fields,
    }


def pod(seen: str = "") -> dict[str, Any]:
    annotations = {"kubernetes.io/config.seen": seen} if seen else {}
    return {
        "metadata": {"name": "web-n", "namespace": "default", "annotations": annotations},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


START = [
    entry(0.0, "image", "Looked", "Unchecked", "Pulling"),
    entry(0.5, "image", "Pulled", "Pulling", "Present"),
    entry(0.7, "event", "Started", cause="Container started", details={"type": "Normal"}),
    entry(0.8, "container", "Started", "Waiting", "Running", cause="a" * 64),
]


def read(entries: list[dict[str, Any]], of: dict[str, Any] | None = None) -> Any:
    return read_history(KEY, entries, of, datetime.fromtimestamp(START_NS / 1e9 + 10, UTC))


def test_each_entry_is_a_line_with_the_time_since_the_start_and_since_the_one_before() -> None:
    lines = read(START).lines
    assert [round(line.at_seconds, 3) for line in lines] == [0.0, 0.5, 0.7, 0.8]
    assert [round(line.gap_seconds, 3) for line in lines] == [0.0, 0.5, 0.2, 0.1]
    assert [line.what for line in lines] == [
        "image Unchecked → Pulling (Looked)",
        "image Pulling → Present (Pulled)",
        "Started",
        "container Waiting → Running (Started)",
    ]
    assert {line.about for line in lines} == {"main"}
    assert lines[3].why == "a" * 13


def test_what_is_about_the_pod_itself_says_pod() -> None:
    (line,) = read([entry(0, "event", "Failed", of="", details={"type": "Warning"})]).lines
    assert line.about == "pod"
    assert line.is_warning


def test_time_counts_from_the_moment_when_the_source_saw_the_pod() -> None:
    seen = pod("2025-12-31T23:59:59.5Z")
    history = read(START, seen)
    assert history.lines[0].at_seconds == pytest.approx(0.5)
    assert "all containers started after 1.20 s" in history.headline
    assert history.headline.endswith("now Running")


def test_a_pod_that_is_gone_is_told_of_all_the_same() -> None:
    assert read(START).headline.endswith("no longer here")


def test_no_entries_are_no_lines() -> None:
    assert not read([]).lines


def test_time_in_states_is_added_up() -> None:
    crashed = [
        *START,
        entry(2.8, "container", "Exited", "Running", "Exited"),
        entry(3.8, "image", "Looked", "Unchecked", "Present"),
        entry(3.8, "container", "Restarted", "Exited", "Waiting"),
        entry(4.0, "container", "Started", "Waiting", "Running"),
    ]
    spent = {(s.machine, s.state): s for s in read(crashed).states}
    assert {key: round(state.seconds, 3) for key, state in spent.items()} == {
        ("image", "Pulling"): 0.5,
        ("container", "Waiting"): 1.0,
        ("container", "Running"): 8.0,
        ("container", "Exited"): 1.0,
    }
    assert spent["container", "Waiting"].times == 2
    assert spent["container", "Running"].is_now
    assert not spent["container", "Waiting"].is_now


def test_a_duration_that_the_journal_knows_is_believed() -> None:
    ended = entry(5, "pod", "Removed", "SyncPod", "Terminating", of="", duration_seconds=60.0)
    spent = {state.state: state.seconds for state in read([ended]).states}
    assert spent["SyncPod"] == 60.0


def test_steps_that_stay_are_lines_but_no_time_of_their_own() -> None:
    history = read([entry(1, "pod", "Changed", "SyncPod", "SyncPod", of="")])
    assert len(history.lines) == 1
    assert not history.states


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.037, "37 ms"),
        (1.5449, "1.54 s"),
        (119.9, "119.90 s"),
        (125, "2m05s"),
        (12_000, "3h20m"),
    ],
)
def test_lengths_of_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_only_ids_are_shortened() -> None:
    assert shorten_ids(f"exit code 3 of {'0f' * 32}") == "exit code 3 of 0f0f0f0f0f0f0"
    assert shorten_ids("localhost/lab/busybox:1") == "localhost/lab/busybox:1"


def test_a_machine_that_begins_was_in_no_state_before() -> None:
    history = read([entry(5.0, "probe", "Began", target="Waiting")])
    assert [each for each in history.states if each.machine == "probe"] == []


def test_pods_that_had_the_same_name_are_told_apart() -> None:
    def life(at: float) -> list[dict[str, Any]]:
        return [
            entry(at, "pod", "Added", target="SyncPod", of="", details={"uid": f"u{at:.0f}"}),
            entry(at + 1, "event", "Started"),
        ]

    lives = incarnations([*life(1), *life(10)])
    assert [[each["event"] for each in life] for life in lives] == [["Added", "Started"]] * 2
    now = datetime.fromtimestamp(START_NS / 1e9 + 20, UTC)
    first = read_history(KEY, lives[0], None, now, is_over=True)
    assert "UID u1," in first.headline
    assert first.headline.endswith("followed by another one")
    assert not any(each.is_now for each in first.states)


def test_a_cause_moves_no_cursor() -> None:
    noted = entry(0.0, "event", "Unhealthy", cause="probe failed: \x1b[2J\nand more")
    lines = read([noted]).lines
    assert [line.why for line in lines] == ["probe failed: \ufffd[2J\nand more"]
