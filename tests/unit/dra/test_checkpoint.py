"""The file of claims: read as it was written, and as another kubelet or nobody would write it."""

import json
import zlib
from pathlib import Path

import pytest

from trio_kubelet.dra.checkpoint import ClaimRecord, PreparedDevice, parsed, printed
from trio_kubelet.dra.records import CHECKPOINT, ClaimRecords

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
