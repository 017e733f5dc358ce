"""Which of two versions is the younger one."""

import pytest

from trio_kubelet.k8s import ObjectMeta
from trio_kubelet.k8s.versions import is_newer, version_number


@pytest.mark.parametrize(
    ("version", "known", "newer"),
    [
        ("10", "9", True),
        ("9", "10", False),
        ("9", "9", False),
        ("9", "", True),
        ("b", "a", True),
        ("a", "a", False),
    ],
)
def test_numbers_are_compared_and_anything_else_is_younger(
    version: str, known: str, newer: bool
) -> None:
    of = [ObjectMeta(resource_version=text) for text in (version, known)]
    assert is_newer(*of) is newer


@pytest.mark.parametrize("text", ["", "abc", "-1", "1.5", "\u0663", "9" * 5000])
def test_what_is_no_number_orders_nothing(text: str) -> None:
    assert version_number(text) == -1
    assert is_newer(ObjectMeta(resource_version=text), ObjectMeta(resource_version="7"))
