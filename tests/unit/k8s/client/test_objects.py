import gc
import json
import weakref
from itertools import pairwise

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import ConfigMap, ObjectMeta, Pod
from trio_kubelet.k8s.client import ApiClient, ApiError, FrameType, Selection, UndecodableObject
from trio_kubelet.k8s.client.api import FrameHead
from trio_kubelet.k8s.client.errors import error_from_answer
from trio_kubelet.k8s.client.objects import (
    FrameReader,
    head_of,
    read_frame,
    read_head,
    read_object,
)
from trio_kubelet.k8s.kinds import CONFIG_MAPS, PODS


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
    assert isinstance(frame.object, UndecodableObject)
    assert (frame.object.name, frame.object.uid) == ("web", "u1")
    assert frame.resource_version == "7"


@pytest.mark.parametrize("document", [b"<html>", b"[]", b'{"type": "NEWS"}', b"{}"])
def test_what_is_no_frame_is_an_error(document: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_frame(CONFIG_MAPS, document, "GET /x")
    assert caught.value.reason == "UnreadableAnswer"


REST = b',"creationTimestamp":"2026-01-31T12:00:00Z"},"spec":{"nodeName":"n"}}}'


@pytest.mark.parametrize(
    ("metadata", "head"),
    [
        (
            b'"name":"web","namespace":"default","uid":"u1","resourceVersion":"7"',
            ("7", "default", "web", "u1"),
        ),
        (
            b'"name":"web-x","generateName":"web-","namespace":"n","uid":"u","resourceVersion":"8"',
            ("8", "n", "web-x", "u"),
        ),
        (b'"name":"gvisor","uid":"u","resourceVersion":"9"', ("9", "", "gvisor", "u")),
        (b'"labels":{"a":"b"},"name":"web","uid":"u","resourceVersion":"9"', None),
        (b'"name":"\\u0061","uid":"u","resourceVersion":"9"', None),
        (b'"name":"\xff","uid":"u","resourceVersion":"9"', None),
        (b'"name":"a","uid":"u","resourceVersion":"x"', None),
    ],
)
def test_the_head_of_a_frame_is_read_as_an_api_server_writes_it(
    metadata: bytes, head: tuple[str, ...] | None
) -> None:
    start = b'{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{'
    document = start + metadata + REST
    expected = head and FrameHead(FrameType.MODIFIED, *head)
    assert read_head(document) == expected
    if head:
        assert head_of(read_frame(PODS, document, "")) == expected


def pod_frame(version: str, image: str) -> bytes:
    metadata = {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": version}
    spec = {"containers": [{"name": "c", "image": image}]}
    return orjson.dumps({"type": "MODIFIED", "object": {"metadata": metadata, "spec": spec}})


def read_pod(frame: bytes) -> Pod:
    found = read_frame(PODS, frame, "asked").object
    assert isinstance(found, Pod)
    return found


def test_a_spec_that_has_not_changed_is_decoded_once() -> None:
    first, second = read_pod(pod_frame("1", "a")), read_pod(pod_frame("2", "a"))
    assert second.spec is first.spec
    assert second.metadata.resource_version == "2"
    answer = read_object(Pod, orjson.dumps(orjson.loads(pod_frame("3", "a"))["object"]), "asked")
    assert answer.spec is first.spec
    changed = read_pod(pod_frame("4", "b"))
    assert changed.spec.containers[0].image == "b"
    assert first.spec.containers[0].image == "a"


def test_a_spec_that_nobody_has_any_more_is_forgotten() -> None:
    spec = weakref.ref(read_pod(pod_frame("1", "gone")).spec)
    gc.collect()
    assert spec() is None
    assert read_pod(pod_frame("2", "gone")).spec.containers[0].image == "gone"


@pytest.mark.parametrize("spec", [{"containers": 7}, {"hostname": "\udc80"}, 7, {"priority": "x"}])
def test_a_spec_that_does_not_fit_never_does(spec: object) -> None:
    document = json.dumps({"type": "ADDED", "object": {"metadata": {}, "spec": spec}}).encode()
    for _ in range(2):
        assert isinstance(read_frame(PODS, document, "asked").object, UndecodableObject)


def test_who_wrote_which_field_is_left_out() -> None:
    metadata = {"name": "m", "namespace": "n", "managedFields": [{"manager": "kubectl"}]}
    frame = {"type": "ADDED", "object": {"metadata": metadata, "data": {"a": "b"}}}
    found = read_frame(CONFIG_MAPS, orjson.dumps(frame), "asked").object
    assert isinstance(found, ConfigMap)
    assert found.metadata.managed_fields == ()
    assert found.data == {"a": "b"}
    alone = read_object(ConfigMap, orjson.dumps(frame["object"]), "asked")
    assert alone.metadata.managed_fields == ()


SURROGATE = rb'"\ud800x"'


@pytest.mark.parametrize("bad", [SURROGATE, b'"\xff"'], ids=["lone surrogate", "no UTF-8"])
async def test_an_item_that_is_no_unicode_is_left_out_of_its_list(bad: bytes) -> None:
    items = b'{"metadata":{"name":"good"}},{"metadata":{"name":"bad"},"data":{"a":' + bad + b"}}"
    answer = b'{"kind":"ConfigMapList","metadata":{"resourceVersion":"7"},"items":[' + items + b"]}"
    listed = await answering(answer).list(CONFIG_MAPS, Selection(namespace="default"))
    assert [item.metadata.name for item in listed.items] == ["good"]
    (left_out,) = listed.undecodable
    assert left_out.name == "bad"
    assert "data[a]: Invalid value" in left_out.why
    assert listed.resource_version == "7"


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'{"kind":"Status"}',
        b'{"kind":"PodList","items":[]}',
        b'{"kind":"ConfigMapList","items":{}}',
        b'{"kind":"ConfigMapList","items":"x"}',
    ],
)
async def test_what_is_no_list_is_not_taken_for_an_empty_one(answer: bytes) -> None:
    with pytest.raises(ApiError, match="is no ConfigMapList"):
        await answering(answer).list(CONFIG_MAPS, Selection(namespace="default"))


@pytest.mark.parametrize("metadata", [b"7", b"null", b'{"resourceVersion":7,"continue":{}}'])
async def test_a_list_whose_metadata_make_no_sense_has_no_version(metadata: bytes) -> None:
    answer = b'{"kind":"ConfigMapList","items":null,"metadata":' + metadata + b"}"
    listed = await answering(answer).list(CONFIG_MAPS, Selection(namespace="default"))
    assert (listed.items, listed.resource_version, listed.continue_) == ((), "", "")


@pytest.mark.parametrize(
    "answer", [b"{}", b'{"metadata":{"name":"other"}}', b'{"kind":"ConfigMapList","items":[]}']
)
async def test_an_answer_about_something_else_is_an_error(answer: bytes) -> None:
    with pytest.raises(ApiError, match="about something else"):
        await answering(answer).get(CONFIG_MAPS, "mine", "default")


async def test_an_object_without_a_name_is_asked_of_nobody() -> None:
    with pytest.raises(ApiError, match="may not be empty") as caught:
        await answering(b"{}").get(CONFIG_MAPS, "", "default")
    assert caught.value.is_not_found


async def test_text_that_is_no_unicode_is_spelled_out_when_it_is_sent() -> None:
    sent: list[bytes] = []
    client = answering(b'{"metadata":{"name":"m"}}', sent)
    await client.create(
        CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name="m"), data={"a": "x\udcff"}), "default"
    )
    await client.patch(CONFIG_MAPS, "m", "default", body={"data": {"b\ud800": ["\udcff", 1]}})
    assert orjson.loads(sent[0])["data"] == {"a": r"x\udcff"}
    assert orjson.loads(sent[1]) == {"data": {r"b\ud800": [r"\udcff", 1]}}


@pytest.mark.parametrize("value", [{}, [], "x", None, 10**40, 1.5, True, -1])
def test_a_status_of_any_form_is_an_error_with_the_code_of_the_answer(value: object) -> None:
    body = orjson.dumps(
        {
            "kind": "Status",
            "code": str(value) if isinstance(value, int) else value,
            "reason": value if value != 10**40 else 1,
            "message": value if value != 10**40 else 1,
            "details": {"retryAfterSeconds": value if value != 10**40 else 1e300},
        }
    )
    error = error_from_answer(503, {}, body, request_name="GET /x")
    assert error.code == 503
    assert error.is_retriable
    assert str(error)
    assert (error.retry_after_seconds or 0.0) <= 3600


@pytest.mark.parametrize("text", ["-1", "9" * 400, "x", "Mon, 99 Jan 0000", "inf"])
def test_nobody_waits_for_ever_because_a_server_says_so(text: str) -> None:
    error = error_from_answer(503, {"retry-after": text}, b"", request_name="GET /x")
    assert 0 <= (error.retry_after_seconds or 0.0) <= 3600


@pytest.mark.parametrize("frame_type", [b"{}", b"[]", b"7", b"null", SURROGATE])
def test_a_frame_of_any_type_is_an_error(frame_type: bytes) -> None:
    with pytest.raises(ApiError, match="is not a valid FrameType"):
        read_frame(CONFIG_MAPS, b'{"type":' + frame_type + b',"object":{}}', "asked")


def answering(body: bytes, sent: list[bytes] | None = None) -> ApiClient:
    """A client of a server that always answers the same."""

    def answer(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(request.content)
        return httpx.Response(200, content=body)

    return ApiClient("http://api.test", httpx.MockTransport(answer))
