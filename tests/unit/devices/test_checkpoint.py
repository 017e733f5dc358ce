"""The file of device records: what the Go kubelet v1.36.3 writes is read, and the other way."""

import json
from collections.abc import Collection

import pytest

from trio_kubelet.devices.checkpoint import DeviceCheckpoint, DeviceRecord, parsed, printed

# Written by the Go kubelet's own package.
GO_FILE = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","ResourceName":"example.com/d"'
    ',"DeviceIDs":{"-1":["dev-2","dev-1"],"0":["a"],"1":["b"]},"AllocResp":"CgUBAv8A"}],'
    '"RegisteredDevices":{"a.b/c":["x"],"example.com/d":[],"example.com/z":["b","a"]}},'
    '"Checksum":2673966065}'
)
GO_EMPTY = '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1944006890}'
GO_WITH_ODD_NAMES = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","ResourceName":"example.com/d"'
    ',"DeviceIDs":{"-1":["dev-2","dev-1"],"0":["a"],"1":["b"]},"AllocResp":"CgUBAv8A"},'
    '{"PodUID":"u2","ContainerName":"c\\u003c\\u0026\\u003e","ResourceName":"example.com/é",'
    '"DeviceIDs":{},"AllocResp":null}],"RegisteredDevices":{"a.b/c":["x"],"example.com/d":[],'
    '"example.com/z":["b","a"]}},"Checksum":2908007054}'
)
RECORD = DeviceRecord(
    pod_uid="u1",
    container="c",
    resource="example.com/d",
    devices={-1: ("dev-2", "dev-1"), 0: ("a",), 1: ("b",)},
    response=bytes([10, 5, 1, 2, 255, 0]),
)


def checkpoint(*records: DeviceRecord, resources: Collection[str] = ()) -> DeviceCheckpoint:
    return DeviceCheckpoint(records=records, resources=frozenset(resources))


@pytest.mark.parametrize("text", [GO_FILE, GO_EMPTY])
def test_the_checksum_of_a_file_of_the_go_kubelet_fits(text: str) -> None:
    assert parsed(text).problems == ()


def test_records_of_the_go_kubelet_are_read_and_an_entry_without_devices_is_told_of() -> None:
    found = parsed(GO_WITH_ODD_NAMES)
    assert found.records == (RECORD,)
    assert found.resources == {"a.b/c", "example.com/d", "example.com/z"}
    assert found.problems == (
        "PodDeviceEntries[1] is ignored: ValueError('DeviceIDs names no device')",
    )


def test_what_is_written_is_read_again() -> None:
    text = printed(checkpoint(RECORD, resources={"example.com/d"}))
    found = parsed(text)
    assert (found.records, found.resources, found.problems) == (
        (RECORD,),
        frozenset({"example.com/d"}),
        (),
    )
    assert json.loads(text)["Data"]["RegisteredDevices"] == {"example.com/d": []}


def test_a_file_without_records_is_that_of_the_go_kubelet() -> None:
    go = '{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":2932075448}'
    assert printed(checkpoint()) == go


def test_a_wrong_checksum_is_told_of_and_the_entries_are_used() -> None:
    found = parsed(GO_FILE.replace("2673966065", "1"))
    assert found.records == (RECORD,)
    assert found.problems == ("its checksum does not fit; each entry is usable, and is used",)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Data":3}', "[" * 100_000])
def test_what_is_no_file_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        3,
        {},
        {"PodUID": 3, "ContainerName": "c", "ResourceName": "r", "DeviceIDs": {"0": ["a"]}},
        {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "DeviceIDs": {"x": ["a"]}},
        {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "DeviceIDs": {"0": [3]}},
        {
            "PodUID": "u",
            "ContainerName": "c",
            "ResourceName": "r",
            "DeviceIDs": {"0": ["a"]},
            "AllocResp": "%",
        },
    ],
)
def test_an_entry_of_another_form_is_left_out(entry: object) -> None:
    good = json.loads(printed(checkpoint(RECORD)))
    good["Data"]["PodDeviceEntries"].append(entry)
    found = parsed(json.dumps(good))
    assert found.records == (RECORD,)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("PodDeviceEntries[1] is ignored: ")
