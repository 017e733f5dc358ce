"""Records of what pods were given, as the Go kubelet writes and wants them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.fnv import FNV_OFFSET, fnv1a_32
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.runtime.lifecycle import resource_records
from trio_kubelet.runtime.lifecycle.resource_records import (
    RecordPrinter,
    asks_for_resources,
    parsed,
    printed,
    record_of,
    with_record,
)

RESOURCES = {"limits": {"cpu": "50m", "memory": "32Mi"}, "requests": {"cpu": "50m"}}
LARGER = {"limits": {"cpu": "80m", "memory": "64Mi"}, "requests": {"cpu": "50m"}}
# As the Go kubelet v1.36.3 wrote it.
BY_GO = (
    r'{"data":"{\"entries\":{\"u-1\":{\"ContainerResources\":{\"c\":{\"limits\":{\"cpu\":\"50m\",'
    r"\"memory\":\"32Mi\"},\"requests\":{\"cpu\":\"50m\",\"memory\":\"32Mi\"}}},"
    r'\"PodLevelResources\":null}}}","checksum":3938757040}'
)


def pod(uid: str = "u-2", *, resources: Any = RESOURCES, whole: Any = None) -> Pod:
    containers = [{"name": "c", "image": "i", "resources": resources}, {"name": "d", "image": "i"}]
    init = [{"name": "i", "image": "i"}]
    spec = {"containers": containers, "initContainers": init}
    spec |= {"resources": whole} if whole else {}
    return decode(Pod, {"metadata": {"uid": uid}, "spec": spec})


def test_a_file_of_the_go_kubelet_is_read_and_written_byte_for_byte() -> None:
    assert printed(parsed(BY_GO)) == BY_GO


A_RECORD: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"ContainerResources": st.dictionaries(st.text(), st.just({}))}
)


@given(st.dictionaries(st.from_regex(r"\A[a-z0-9][-.a-z0-9]{0,40}\Z"), A_RECORD))
def test_what_is_printed_is_read_back(entries: dict[str, dict[str, object]]) -> None:
    assert parsed(printed(entries)) == entries


@given(st.lists(st.dictionaries(st.sampled_from(["u", "v", "10", "9"]), A_RECORD), max_size=6))
def test_what_is_printed_again_and_again_says_what_is_new(files: list[dict[str, Any]]) -> None:
    printer = RecordPrinter()
    for records in files:
        text = printer.printed(records)
        assert parsed(text) == records


class Hashed:
    """Counts the bytes that checksums are made of."""

    def __init__(self) -> None:
        self.count = 0

    def fnv1a_32(self, data: bytes, value: int = FNV_OFFSET) -> int:
        self.count += len(data)
        return fnv1a_32(data, value)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    counting = Hashed()
    monkeypatch.setattr(resource_records, "fnv1a_32", counting.fnv1a_32)
    return counting


def test_a_pod_that_comes_costs_nothing_for_those_of_its_size_that_are_there(
    hashed: Hashed,
) -> None:
    printer, records = RecordPrinter(), dict[str, Any]()
    for number in range(200):
        cpu = f"{number * 7 % 200}m"
        records = {
            **records,
            f"uid-{number * 31 % 200}": record_of(pod(resources={"requests": {"cpu": cpu}})),
        }
        hashed.count = 0
        text = printer.printed(records)
        assert hashed.count < 500
    assert parsed(text) == records


def test_a_pod_that_comes_or_goes_costs_nothing_for_what_larger_ones_have(
    hashed: Hashed,
) -> None:
    large = {
        f"a-{n}": record_of(pod(resources={"limits": {f"a.b/c{i}": "1" for i in range(100)}}))
        for n in range(100, 110)
    }
    small = {"b": record_of(pod()), "c": record_of(pod())}
    printer = RecordPrinter()
    printer.printed(large)
    assert hashed.count > 10_000
    for records in ({**large, "b": small["b"]}, {**small, **large}, {"c": small["c"], **large}):
        hashed.count = 0
        text = printer.printed(records)
        assert hashed.count < 500
        assert parsed(text) == records
        hashed.count = 0
    printer.printed({name: large[name] for name in list(large)[:-1]})
    assert hashed.count < 500, "the newest of the large ones stands last"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"data": 3, "checksum": 3}',
        BY_GO.replace("50m", "60m"),
        printed({"u": 3}),  # type: ignore[dict-item]
        printed({"../..": record_of(pod())}),
        go_json({"data": '{"entries":["u"]}', "checksum": fnv1a_32(b'(string){"entries":["u"]}')}),
    ],
)
def test_a_file_that_is_not_whole_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(text)


def test_a_record_has_what_each_container_and_the_pod_ask_for() -> None:
    assert record_of(pod()) == {
        "ContainerResources": {"i": {}, "c": RESOURCES, "d": {}},
        "PodLevelResources": None,
    }
    assert record_of(pod(whole=LARGER))["PodLevelResources"] == LARGER


@pytest.mark.parametrize(
    ("asking", "asks"),
    [
        (pod(), True),
        (pod(resources={}), False),
        (pod(resources={}, whole=RESOURCES), True),
        (pod(resources={"limits": {}}), False),
    ],
)
def test_a_pod_asks_for_resources_in_its_containers_or_as_a_whole(asking: Pod, asks: bool) -> None:
    assert asks_for_resources(asking) is asks


@pytest.mark.parametrize(
    ("resources", "whole"), [(LARGER, None), (RESOURCES, LARGER), (LARGER, LARGER), ({}, None)]
)
def test_a_pod_with_a_record_has_what_is_recorded(resources: Any, whole: Any) -> None:
    before, after = pod(), pod(resources=resources, whole=whole)
    given_pod = with_record(after, record_of(before))
    assert encode(given_pod) == encode(before)
    assert with_record(before, record_of(before)) is before


def test_what_a_record_does_not_name_stays_as_the_pod_has_it() -> None:
    """The Go kubelet may have written it before a field was known, or without a gate."""
    asking = pod(whole=LARGER)
    assert with_record(asking, {"ContainerResources": {"x": LARGER}}) is asking
    assert with_record(asking, {}) is asking


@pytest.mark.parametrize(
    "record",
    [
        {"ContainerResources": 3},
        {"ContainerResources": ["c"]},
        {"ContainerResources": {"c": 3}},
        {"ContainerResources": {"c": {"limits": {"cpu": "a lot"}}}},
        {"PodLevelResources": "all"},
    ],
)
def test_a_record_that_is_none_is_an_error(record: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        with_record(pod(), record)
