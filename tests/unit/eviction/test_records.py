"""Records of evictions, over restarts and with files that are none."""

import json
from pathlib import Path

import pytest
import structlog
from attrs import evolve

from state_machines.pod import PodEvent
from tests.unit.eviction.candidates import pod
from trio_kubelet.eviction.decision import Victim
from trio_kubelet.eviction.records import (
    FILE,
    MAX_CLOSED,
    EvictionRecord,
    EvictionRecords,
    parsed,
    printed,
    record_of,
)

VICTIM = Victim(
    pod=pod("uid-a"),
    cause="memory.available",
    message="The node was low. ",
    grace_seconds=1,
    disruption="The node was low. ",
    annotations={},
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
    assert records.ending_of("uid-a") == RECORD.ending
    assert records.ending_of("uid-b") is None


async def test_a_pod_that_its_source_shows_as_ended_is_not_ended_again(tmp_path: Path) -> None:
    records = await loaded(tmp_path)
    await records.add([RECORD])
    await records.close(lambda _uid: False)
    assert records.ending_of("uid-a") is not None
    await records.close(lambda uid: uid == "uid-a")
    for each in (records, await loaded(tmp_path)):
        assert each.ending_of("uid-a") is None
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
        "[" * 100_000,
    ],
)
async def test_a_damaged_file_is_set_aside(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with structlog.testing.capture_logs() as logs:
        records = await loaded(tmp_path)
    assert list(records) == []
    assert [entry["event"] for entry in logs] == ["damaged eviction records set aside"]
    assert (tmp_path / f"{FILE}.damaged").read_text() == text


async def test_a_disk_that_takes_no_record_keeps_no_pod(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    records = EvictionRecords(tmp_path)
    with structlog.testing.capture_logs() as logs:
        await records.add([RECORD])
    assert [entry["event"] for entry in logs] == ["eviction record write failed"]
    assert records.ending_of("uid-a") is not None


def test_what_is_printed_can_be_read() -> None:
    other = evolve(RECORD, uid="b", is_open=False, message='Volume "v" \u2028')
    assert parsed(printed([RECORD, other])) == (RECORD, other)
    assert isinstance(json.loads(printed([])), dict)
    assert {type(each) for each in parsed(printed([RECORD]))} == {EvictionRecord}
