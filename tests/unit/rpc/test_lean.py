"""A lean message behaves as betterproto's own does, wherever it may stand in for it."""
# ruff: noqa: RUF009 - betterproto's fields are calls

from dataclasses import dataclass
from typing import Any

import betterproto
import pytest

from trio_kubelet.rpc.lean import LeanMessage
from trio_kubelet.rpc.messages import is_present, present
from trio_kubelet.rpc.stubs.runtime import v1 as cri


def message_types(base: type[betterproto.Message]) -> tuple[type[Any], type[Any]]:
    """An outer message and the inner one of its field, on that base."""

    @dataclass(eq=False, repr=False)
    class Inner(base):  # type: ignore[misc, valid-type]
        number: int = betterproto.int64_field(1)

    @dataclass(eq=False, repr=False)
    class Outer(base):  # type: ignore[misc, valid-type]
        name: str = betterproto.string_field(1)
        inner: Inner = betterproto.message_field(2)
        names: list[str] = betterproto.string_field(3)
        pairs: dict[str, str] = betterproto.map_field(
            4, betterproto.TYPE_STRING, betterproto.TYPE_STRING
        )

        @classmethod
        def _type_hint(cls, field_name: str) -> Any:
            return {"name": str, "inner": Inner, "names": list[str], "pairs": dict[str, str]}[
                field_name
            ]

        @classmethod
        def _cls_for(cls, field: Any, index: int = 0) -> Any:
            return Inner if field.name == "inner" else str

    return Outer, Inner


def read_absent(outer: Any) -> None:
    assert outer.inner.number == 0
    assert outer.names == []


def assign_inner(outer: Any) -> None:
    outer.inner.number = 0


def append(outer: Any) -> None:
    outer.names.append("x")


@pytest.mark.parametrize("change", [read_absent, assign_inner, append])
@pytest.mark.parametrize("given", [{}, {"name": ""}, {"name": "a"}, {"pairs": {"k": "v"}}])
def test_it_sends_what_betterproto_sends(given: dict[str, Any], change: Any) -> None:
    sent = []
    for base in (LeanMessage, betterproto.Message):
        outer_type, _ = message_types(base)
        outer = outer_type(**given)
        before = (bytes(outer), is_present(outer), is_present(outer.inner))
        change(outer)
        again = outer_type().parse(bytes(outer))
        sent.append(
            (before, bytes(outer), is_present(outer.inner), is_present(again.inner), repr(again))
        )
    assert sent[0] == sent[1]


@pytest.mark.parametrize("value", [None, 0, 7])
def test_a_message_within_is_there_if_any_field_was_given(value: int | None) -> None:
    found = []
    for base in (LeanMessage, betterproto.Message):
        outer_type, inner_type = message_types(base)
        inner = inner_type() if value is None else inner_type(number=value)
        found.append(bytes(outer_type(inner=inner)))
        found.append(bytes(outer_type(inner=present(inner_type()))))
    assert found[:2] == found[2:]


def test_reading_a_field_that_is_absent_does_not_make_the_message_present() -> None:
    config = cri.PodSandboxConfig()
    assert config.linux.resources.cpu_shares == 0
    assert config.labels == {}
    assert not is_present(config)
    assert not is_present(config.linux)
    config.labels["a"] = "b"
    assert bytes(config) == bytes(cri.PodSandboxConfig(labels={"a": "b"}))


def test_unknown_fields_are_kept() -> None:
    data = b"\xf8\x07\x05" + b"\x0a\x01a"
    assert bytes(cri.VersionRequest().parse(data)) == b"\x0a\x01a\xf8\x07\x05"


def test_messages_are_equal_by_their_fields() -> None:
    assert cri.ImageSpec(image="a") == cri.ImageSpec(image="a", annotations={})
    assert cri.ImageSpec(image="a") != cri.ImageSpec(image="b")
