from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import ConfigMap
from trio_kubelet.k8s.client import ApiError, FrameType, Undecodable
from trio_kubelet.k8s.client.objects import FrameReader, read_frame, read_object
from trio_kubelet.k8s.kinds import CONFIG_MAPS


@given(
    st.lists(st.dictionaries(st.text(), st.text()), max_size=6),
    st.lists(st.integers(0, 300), max_size=20),
)
def test_documents_come_out_whole_however_they_are_cut(
    documents: list[dict[str, str]], cuts: list[int]
) -> None:
    stream = b"".join(orjson.dumps(document) + b"\n" for document in documents)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    found = [
        orjson.loads(document)
        for start, end in pairwise(edges)
        for document in reader.feed(stream[start:end])
    ]
    assert found == documents


def test_an_error_frame_is_raised() -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    document = orjson.dumps({"type": "ERROR", "object": status})
    with pytest.raises(ApiError, match="too old") as caught:
        read_frame(CONFIG_MAPS, document, "")
    assert caught.value.is_gone


def test_an_object_that_does_not_fit_keeps_its_name() -> None:
    metadata = {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7"}
    document = orjson.dumps({"type": "ADDED", "object": {"metadata": metadata, "data": 7}})
    frame = read_frame(CONFIG_MAPS, document, "")
    assert frame.type is FrameType.ADDED
    assert isinstance(frame.object, Undecodable)
    assert (frame.object.name, frame.object.uid) == ("web", "u1")
    assert frame.resource_version == "7"


@pytest.mark.parametrize("document", [b"<html>", b"[]", b'{"type": "NEWS"}', b"{}"])
def test_what_is_no_frame_is_an_error(document: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_frame(CONFIG_MAPS, document, "GET /x")
    assert caught.value.reason == "UnreadableAnswer"


def test_who_wrote_which_field_is_left_out() -> None:
    metadata = {"name": "m", "namespace": "n", "managedFields": [{"manager": "kubectl"}]}
    frame = {"type": "ADDED", "object": {"metadata": metadata, "data": {"a": "b"}}}
    found = read_frame(CONFIG_MAPS, orjson.dumps(frame), "asked").object
    assert isinstance(found, ConfigMap)
    assert found.metadata.managed_fields == ()
    assert found.data == {"a": "b"}
    alone = read_object(ConfigMap, orjson.dumps(frame["object"]), "asked")
    assert alone.metadata.managed_fields == ()
