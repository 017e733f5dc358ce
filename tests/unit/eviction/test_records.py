"""Records of evictions, over restarts and with files that are none."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from attrs import evolve

from state_machines.pod import PodEvent
from tests.trio_clock import TrioClock
from tests.unit.eviction.candidates import pod
from trio_kubelet.eviction.decision import Victim
from trio_kubelet.eviction.records import (
    FILE,
    FILE_BYTES,
    MAX_CLOSED,
    EvictionRecord,
    EvictionRecords,
    parsed,
    printed,
    record_of,
)
from trio_kubelet.kernel.whole_files import write_reserved
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent

VICTIM = Victim(
    pod=pod("uid-a"),
    cause="memory.available",
    message="The node was low. ",
    grace_seconds=1,
    disruption="The node was low. ",
    annotations={"starved_resource": "memory"},
)
RECORD = record_of(VICTIM, 17)


async def loaded(root: Path) -> EvictionRecords:
    records = EvictionRecords(root)
    await records.load()
    return records


def test_a_record_says_how_the_pod_ends() -> None:
    ending = RECORD.ending
    assert ending.cause is PodEvent.EVICTED
    assert (ending.reason, ending.message, ending.grace_seconds) == (
        "Evicted",
        "The node was low. ",
        1,
    )
    assert ending.disruption == "The node was low. "
    assert ending.delete_content
    assert not ending.delete_remains


async def test_the_next_agent_finds_what_was_decided(tmp_path: Path) -> None:
    await (await loaded(tmp_path)).add([RECORD])
    records = await loaded(tmp_path)
    assert list(records) == [RECORD]
    assert records.open_uids() == {"uid-a"}
    assert records.open_record("uid-a") == RECORD
    assert records.open_record("uid-b") is None


async def test_a_pod_that_its_source_shows_as_ended_is_not_ended_again(tmp_path: Path) -> None:
    records = await loaded(tmp_path)
    await records.add([RECORD])
    await records.close(lambda _uid: False)
    assert records.open_record("uid-a") is not None
    await records.close(lambda uid: uid == "uid-a")
    for each in (records, await loaded(tmp_path)):
        assert each.open_record("uid-a") is None
        assert [record.is_open for record in each] == [False]


async def test_only_the_last_evictions_are_kept_and_no_open_one_goes(tmp_path: Path) -> None:
    records = await loaded(tmp_path)
    await records.add([RECORD])
    await records.add(evolve(RECORD, uid=f"uid-{number}") for number in range(MAX_CLOSED + 5))
    await records.close(lambda uid: uid != "uid-a")
    kept = list(records)
    assert len(kept) == MAX_CLOSED + 1
    assert kept[0].uid == "uid-a"
    assert kept[-1].uid == f"uid-{MAX_CLOSED + 4}"


async def test_records_never_outgrow_their_file_and_the_newest_and_open_ones_stay(
    tmp_path: Path,
) -> None:
    records = await loaded(tmp_path)
    long = "x" * (FILE_BYTES // 20)
    for number in range(40):
        await records.add([evolve(RECORD, uid=f"uid-{number}", message=long)])
        await records.close(lambda uid: uid != "uid-0")
        assert (tmp_path / FILE).stat().st_size == FILE_BYTES
    kept = [each.uid for each in await loaded(tmp_path)]
    assert (kept[0], kept[-1]) == ("uid-0", "uid-39")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"evictions": 7}',
        '{"evictions": [7]}',
        '{"evictions": [{}]}',
        printed([RECORD]).replace("17", '"17"'),
        printed([RECORD]).replace("true", "1"),
        printed([evolve(RECORD, at_ns=10**30)]),
        printed([evolve(RECORD, grace_seconds=10**400)]),
        printed([evolve(RECORD, grace_seconds=-1)]),
        "[" * 100_000,
    ],
)
async def test_a_damaged_file_is_set_aside(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with structlog.testing.capture_logs() as logs:
        records = await loaded(tmp_path)
    assert list(records) == []
    assert [entry["event"] for entry in logs] == ["damaged state file set aside"]
    assert (tmp_path / f"{FILE}.damaged").read_text() == text


async def test_a_disk_that_takes_no_record_keeps_no_pod(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    records = EvictionRecords(tmp_path)
    with structlog.testing.capture_logs() as logs:
        await records.add([RECORD])
    assert [entry["event"] for entry in logs] == ["eviction record write failed"]
    assert records.open_record("uid-a") is not None


async def test_a_disk_that_hangs_holds_up_no_eviction_and_has_the_record_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def write(*arguments: Any, **options: Any) -> None:
        answers.wait()
        write_reserved(*arguments, **options)

    monkeypatch.setattr("trio_kubelet.eviction.records.write_reserved", write)
    monkeypatch.setattr("trio_kubelet.eviction.records.SAVE_SECONDS", 0.05)
    records = EvictionRecords(tmp_path)
    with structlog.testing.capture_logs() as logs:
        await records.add([RECORD])
        await records.add([evolve(RECORD, uid="uid-b")])
    assert [entry["event"] for entry in logs] == ["eviction record write timed out"]
    answers.set()
    with trio.fail_after(20):
        while (await loaded(tmp_path)).open_uids() != {"uid-a", "uid-b"}:
            await records.close(lambda _uid: False)
            await trio.sleep(0.01)


async def test_the_event_of_an_eviction_that_another_agent_began_has_its_annotations() -> None:
    told: list[RecordedEvent] = []
    recorder = EventRecorder(Journal(TrioClock()), "node")
    recorder.on_event.add(told.append)
    (record,) = parsed(printed([RECORD]))
    record.tell(recorder, VICTIM.pod)
    [event] = told
    assert (event.reason, event.message) == ("Evicted", VICTIM.message)
    assert event.annotations == VICTIM.annotations


def test_a_record_of_an_older_agent_has_no_annotations() -> None:
    text = printed([evolve(RECORD, annotations={})]).replace('"annotations": {},', "")
    assert "annotations" not in text
    assert parsed(text) == (evolve(RECORD, annotations={}),)


def test_what_is_printed_can_be_read() -> None:
    other = evolve(RECORD, uid="b", is_open=False, message='Volume "v" \u2028')
    assert parsed(printed([RECORD, other])) == (RECORD, other)
    assert isinstance(json.loads(printed([])), dict)
    assert {type(each) for each in parsed(printed([RECORD]))} == {EvictionRecord}
