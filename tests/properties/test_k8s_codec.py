"""What is encoded decodes to the same, through JSON text too."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_kubelet.k8s as k8s
from tests.properties.k8s_strategies import api_objects, json_values, nanoseconds
from trio_kubelet.k8s import Duration, MicroTime, Pod, PodList, Time, ValidationError
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.codec import decode, encode, unknown_fields

CLASSES: list[type[Any]] = [
    cls
    for cls in vars(k8s).values()
    if isinstance(cls, type) and issubclass(cls, ApiType) and cls is not ApiType
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_every_class_survives_encoding(cls: type[Any], data: st.DataObject) -> None:
    value = data.draw(api_objects(cls))
    assert decode(cls, encode(value)) == value


@given(api_objects(Pod))
def test_a_pod_survives_json(pod: Pod) -> None:
    assert decode(Pod, orjson.loads(orjson.dumps(encode(pod)))) == pod


@given(api_objects(PodList))
def test_encoding_makes_no_unknown_fields_and_encodes_the_same_again(pods: PodList) -> None:
    data = encode(pods)
    assert unknown_fields(PodList, data) == ()
    assert encode(decode(PodList, data)) == data


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "kind"]), json_values))
def test_any_json_decodes_or_is_refused_with_paths(data: dict[str, Any]) -> None:
    try:
        assert isinstance(decode(Pod, data), Pod)
        problems = None
    except ValidationError as error:
        problems = error.errors
    assert problems is None or (problems and all(one.path and one.detail for one in problems))


@given(nanoseconds)
def test_times_are_what_their_text_says(ns: int) -> None:
    assert Time.parse(str(Time.from_ns(ns))) == Time.from_ns(ns)
    assert MicroTime.parse(str(MicroTime.from_ns(ns))) == MicroTime.from_ns(ns)
    assert 0 <= ns - Time.from_ns(ns).ns < 1_000_000_000
    assert 0 <= ns - MicroTime.from_ns(ns).ns < 1_000


@given(nanoseconds, nanoseconds)
def test_texts_of_times_sort_as_the_times_do(one: int, other: int) -> None:
    assert (Time.from_ns(one) < Time.from_ns(other)) == (
        str(Time.from_ns(one)) < str(Time.from_ns(other))
    )


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_durations_are_what_their_text_says(ns: int) -> None:
    assert Duration.parse(str(Duration(ns))) == Duration(ns)
