"""Manifests as people and installers write them."""

from pathlib import Path
from typing import Any

import pytest

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode, encode, unknown_fields
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.k8s.documents import load_documents
from trio_kubelet.k8s.validation import validate_pod

MANIFESTS = sorted((Path(__file__).parent / "manifests").glob("*.yaml"))


def load(path: Path) -> dict[str, Any]:
    (document,) = load_documents(path.read_bytes())
    return document


def without_absent(value: Any) -> Any:
    """Null means absent, and a status without content is the same as none."""
    if isinstance(value, list):
        return [without_absent(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_absent(item) for key, item in value.items() if item is not None}
    return {key: item for key, item in kept.items() if key != "status" or item}


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.stem)
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def test_a_manifest_survives_decoding_and_encoding(document: dict[str, Any]) -> None:
    assert encode(decode(Pod, document)) == without_absent(document)


def test_a_manifest_has_no_unknown_fields(document: dict[str, Any]) -> None:
    assert unknown_fields(Pod, document) == ()


def test_a_manifest_is_valid_once_it_has_its_defaults(document: dict[str, Any]) -> None:
    pod = with_defaults(decode(Pod, document))
    assert [str(error) for error in validate_pod(pod, is_new=False)] == []


def test_defaults_are_filled_in_once_and_survive_encoding(document: dict[str, Any]) -> None:
    pod = with_defaults(decode(Pod, document))
    assert with_defaults(pod) == pod
    assert decode(Pod, encode(pod)) == pod


def test_defaults_change_nothing_that_a_manifest_says(document: dict[str, Any]) -> None:
    defaulted = encode(with_defaults(decode(Pod, document)))
    assert_contains(defaulted, without_absent(document), "")


def assert_contains(actual: Any, expected: Any, path: str) -> None:
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in actual, f"{path}.{key}"
            assert_contains(actual[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), path
        for index, value in enumerate(expected):
            assert_contains(actual[index], value, f"{path}[{index}]")
    else:
        assert actual == expected, path
