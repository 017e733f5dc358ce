"""Records of what pods were given, as the Go kubelet writes and wants them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.runtime.lifecycle.resource_records import (
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


@given(st.dictionaries(st.text(), st.fixed_dictionaries({"ContainerResources": st.just({})})))
def test_what_is_printed_is_read_back(entries: dict[str, dict[str, object]]) -> None:
    assert parsed(printed(entries)) == entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"data": 3, "checksum": 3}',
        BY_GO.replace("50m", "60m"),
        printed({"u": 3}),  # type: ignore[dict-item]
        printed(["u"]),  # type: ignore[arg-type]
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
