"""A pod that is written as protobuf is read by the protobuf library as the same pod."""

from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from tests.pod_protobuf import read_pod
from tests.properties.k8s_strategies import api_objects, values
from trio_kubelet.k8s import Pod, PodSpec, PodStatus
from trio_kubelet.k8s.protobuf import encode_protobuf

PARTS = [
    st.builds(lambda value, name=each.name, cls=cls: cls(**{name: value}), values(each.type))
    for cls in (PodSpec, PodStatus)
    for each in fields(cls)
]
"""Specs and statuses with one field each: so that what is deep in them is met often."""


@given(api_objects(Pod))
def test_a_pod_is_read_as_it_was_written(pod: Pod) -> None:
    without_kind = evolve(pod, api_version="", kind="")
    assert read_pod(encode_protobuf(pod)) == without_kind


@given(st.one_of(PARTS))
def test_each_part_of_a_pod_is_read_as_it_was_written(part: PodSpec | PodStatus) -> None:
    pod = Pod(spec=part) if isinstance(part, PodSpec) else Pod(status=part)
    assert read_pod(encode_protobuf(pod)) == pod
