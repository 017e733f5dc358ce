"""The file of claims: read as it was written, and as another kubelet or nobody would write it."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.dra import records as records_module
from trio_kubelet.dra.checkpoint import ClaimRecord, PreparedDevice, parsed, printed
from trio_kubelet.dra.records import CHECKPOINT, MAX_RECORDED_BYTES, ClaimRecords
from trio_kubelet.kernel.state_file import MAX_BYTES

MOST_OF_A_BYTE = len(r"\\u0001")
"""Characters that JSON in JSON makes of one."""
EMPTY_BYTES = len(printed([]))

DEVICE = PreparedDevice(pool="p", device="d", requests=("gpu",), cdi_ids=("a/b=<c>",), share_id="s")
RECORDS = (
    ClaimRecord(
        uid="u1",
        namespace="default",
        name="a",
        pods=frozenset({"p2", "p1"}),
        drivers={"d.example.com": (DEVICE, PreparedDevice()), "none.example.com": ()},
    ),
    ClaimRecord(
        uid="u2",
        namespace="default",
        name="b",
        pods=frozenset({"p1"}),
        drivers={"d.example.com": None},
    ),
)


texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('<&\x01\\"'), max_size=9)
devices = st.builds(
    PreparedDevice,
    pool=texts,
    device=texts,
    requests=st.lists(texts, max_size=3).map(tuple),
    cdi_ids=st.lists(texts, max_size=3).map(tuple),
    share_id=texts,
)
claim_records = st.builds(
    ClaimRecord,
    uid=texts,
    namespace=texts,
    name=texts,
    pods=st.frozensets(texts, max_size=3),
    drivers=st.dictionaries(
        texts, st.none() | st.lists(devices, max_size=3).map(tuple), max_size=3
    ),
)


def file_of(*entries: object) -> str:
    data = json.dumps({"ClaimInfoStateList": list(entries)})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})


ENTRY = {
    "ClaimUID": "u",
    "ClaimName": "a",
    "Namespace": "default",
    "PodUIDs": {"p": {}},
    "DriverState": {
        "d.example.com": {
            "Devices": [
                {
                    "PoolName": "p",
                    "DeviceName": "d",
                    "RequestNames": None,
                    "CDIDeviceIDs": ["a/b=c"],
                }
            ]
        }
    },
}


def test_what_is_written_is_read_again() -> None:
    found = parsed(printed(RECORDS))
    assert found.records == RECORDS
    assert found.problems == ()
    assert [each.is_answered for each in found.records] == [True, False]


def test_the_checksum_is_that_of_the_text() -> None:
    file = json.loads(printed(RECORDS))
    assert file["Checksum"] == zlib.crc32(file["Data"].encode())
    assert parsed(json.dumps({**file, "Checksum": 1})).records == RECORDS


def test_an_entry_without_lists_is_usable() -> None:
    (record,) = parsed(file_of(ENTRY)).records
    assert record.drivers == {
        "d.example.com": (PreparedDevice(pool="p", device="d", cdi_ids=("a/b=c",)),)
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"ClaimUID": "../../etc"},
        {"ClaimName": 3},
        {"Namespace": None},
        {"PodUIDs": {"a/b": {}}},
        {"PodUIDs": 3},
        {"DriverState": {"d": {}}},
        {"DriverState": {"d": {"Devices": [{"PoolName": "\ud800"}]}}},
        {"DriverState": {"d" * 2000: {"Devices": []}}},
        {"DriverState": []},
    ],
)
def test_an_entry_that_is_none_is_named_and_costs_no_other(changed: dict[str, object]) -> None:
    damaged = {**ENTRY, **changed}
    if changed == {"DriverState": []}:
        damaged = {key: value for key, value in ENTRY.items() if key != "PodUIDs"}
    found = parsed(file_of(damaged, ENTRY))
    assert [record.name for record in found.records] == ["a"]
    (problem,) = found.problems
    assert problem.startswith("ClaimInfoStateList[0] is ignored: ")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"Data": 3}', '{"Data": "["}', '{"Data": "[]"}', "[" * 9999],
)
async def test_a_file_that_is_none_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / CHECKPOINT).write_text(text)
    records = ClaimRecords(tmp_path)
    await records.load()
    assert records.uids() == set()
    assert (tmp_path / f"{CHECKPOINT}.damaged").read_text() == text
    records.put(RECORDS[0])
    assert await records.keep()
    again = ClaimRecords(tmp_path)
    await again.load()
    assert tuple(again.all()) == RECORDS[:1]


@given(st.lists(claim_records, max_size=5))
def test_what_is_counted_of_records_bounds_their_file(records: list[ClaimRecord]) -> None:
    size = sum(each.size_bytes for each in records)
    assert len(printed(records).encode(errors="replace")) <= MOST_OF_A_BYTE * size + EMPTY_BYTES


def test_all_that_is_recorded_can_be_read_again() -> None:
    assert MOST_OF_A_BYTE * MAX_RECORDED_BYTES + EMPTY_BYTES <= MAX_BYTES


def record(namespace: str, number: int, **fields: Any) -> ClaimRecord:
    named = {"uid": f"u{number}", "name": f"n{number}", "pods": frozenset({"p"})}
    return ClaimRecord(namespace=namespace, **{**named, **fields})


def test_the_claims_of_a_namespace_and_of_all_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "MAX_CLAIMS", 3)
    monkeypatch.setattr(records_module, "MAX_CLAIMS_OF_NAMESPACE", 2)
    records = ClaimRecords(tmp_path)
    for number in range(2):
        records.put(record("a", number))
    assert "pods of namespace a use 2 claims" in records.lack_of_room(record("a", 2))
    assert records.lack_of_room(record("a", 1)) == "", "it is there already"
    assert records.lack_of_room(record("b", 2)) == ""
    records.put(record("b", 2))
    assert "pods of this node use 3 claims" in records.lack_of_room(record("b", 3))
    records.drop(record("a", 0))
    assert records.lack_of_room(record("a", 3)) == ""


def test_the_records_of_a_namespace_leave_room_for_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "MAX_RECORDED_BYTES", 3000)
    monkeypatch.setattr(records_module, "MAX_RECORDED_BYTES_OF_NAMESPACE", 2000)
    large = {"driver": (PreparedDevice(device="x" * 1000),)}
    records = ClaimRecords(tmp_path)
    records.put(record("a", 0, drivers=large))
    assert "namespace a has 2000 bytes" in records.lack_of_room(record("a", 1, drivers=large))
    assert records.lack_of_room(record("a", 0, drivers=large)) == "", "it is there already"
    assert records.lack_of_room(record("a", 1)) == ""
    records.put(record("b", 2, drivers=large))
    assert "this node's pods has 3000 bytes" in records.lack_of_room(record("c", 3, drivers=large))
    records.drop(record("a", 0))
    assert records.lack_of_room(record("a", 1, drivers=large)) == ""
