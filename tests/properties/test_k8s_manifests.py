"""Whatever stands in a manifest, reading it ends with a pod or with a list of what is wrong."""

import math
from typing import Any

import orjson
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.properties.k8s_strategies import api_objects, json_values, texts
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.documents import DocumentError, load_documents
from trio_kubelet.k8s.validation import validate_pod

documents = st.dictionaries(texts, json_values, max_size=4)
scalars = st.text("yYnNoOfFtTrRuUeEsSlLaA0123456789.:-_+xXbe~<>=!'\"#&*[]{}, ", max_size=12)


@given(api_objects(Pod))
def test_any_pod_can_be_given_defaults_and_validated(pod: Pod) -> None:
    defaulted = with_defaults(pod)
    assert with_defaults(defaulted) == defaulted
    errors = validate_pod(defaulted)
    assert all(error.path.startswith(("metadata", "spec")) for error in errors)
    assert len({str(error) for error in errors}) == len(errors), "an error is told twice"


@given(api_objects(Pod))
def test_defaults_only_add_or_round(pod: Pod) -> None:
    before, after = encode(pod), encode(with_defaults(pod))
    before.get("spec", {}).pop("serviceAccount", None)
    assert set(before) <= set(after)
    assert set(before.get("spec", {})) <= set(after["spec"])


@given(api_objects(Pod))
def test_a_pod_survives_yaml(pod: Pod) -> None:
    text = yaml.safe_dump(encode(pod), default_style='"')
    assert [decode(Pod, data) for data in load_documents(text.encode())] == [pod]


@given(documents)
def test_json_is_read_as_it_stands(document: dict[str, Any]) -> None:
    assert load_documents(orjson.dumps(document)) == [document]


@given(scalars)
@example("0o")
@example("0b")
@example("1_")
@example("-")
@example("+.inf")
@example("_1")
@example("9" * 5000)
@example("1e999")
def test_any_scalar_is_read_or_refused(text: str) -> None:
    try:
        (document,) = load_documents(f"key: {text}\n".encode())
    except DocumentError:
        return
    value = document.get("key")
    assert value is None or isinstance(value, str | bool | int | float | list | dict)
    assert (
        not isinstance(value, float)
        or math.isnan(value)
        or not value.is_integer()
        or abs(value) >= 1e21
    )


@given(st.binary(max_size=200))
@example(b"%YAML 3.0\n---\na: 1")
@example(b"--- &a\n? *a\n: 1")
@example(b"{")
@example(b"\xef\xbb\xbf{}")
@example(b"a: !!binary x")
@example(b"a: &x\nb: *x")
def test_any_file_is_read_or_refused(data: bytes) -> None:
    try:
        loaded = load_documents(data)
    except DocumentError as error:
        message = str(error)
    else:
        assert all(isinstance(document, dict) for document in loaded)
        return
    assert message
    assert "\n" not in message
