"""The numbers of the protobuf against the tables of facts, and pods read by another reader."""

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import attrs
import pytest

from tests.pod_protobuf import INLINED, read_facts, read_pod
from tests.unit.field_tables import read_facts as read_api_facts
from trio_kubelet.k8s import (
    CertificateSigningRequest,
    Container,
    EmptyDirVolumeSource,
    IntOrString,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    Time,
    Volume,
)
from trio_kubelet.k8s.base import ApiType
from trio_kubelet.k8s.protobuf import encode_protobuf
from trio_kubelet.k8s.protobuf_numbers import FIELD_NUMBERS

FACTS = read_facts()
LEAVES: Mapping[Any, object] = {
    str: "text",
    bool: True,
    int: -1,
    object: 1,
    Quantity: Quantity("1500m"),
    Time: Time.parse("2026-01-31T12:00:00Z"),
    IntOrString: IntOrString(8080),
}
"""A value for each type of field; of numbers the one that takes the most bytes."""

WRITTEN_BY_HAND = {"resource.Quantity", "intstr.IntOrString", "meta.v1.Time", "meta.v1.FieldsV1"}
"""Messages that are a single value in JSON."""


def full(annotation: Any) -> Any:
    """A value of a type, with all fields set of all that it contains."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in LEAVES:
        return LEAVES[annotation]
    if origin is Annotated:
        return full(arguments[0])
    if origin is tuple:
        return (full(arguments[0]),)
    if origin is Mapping:
        return {"key": full(arguments[1])}
    if NoneType in arguments:
        return full(next(each for each in arguments if each is not NoneType))
    return annotation(**{each.name: full(each.type) for each in attrs.fields(annotation)})


FULL_POD: Pod = attrs.evolve(full(Pod), api_version="", kind="")


def parts_of(value: object) -> Iterator[ApiType]:
    """An object and all that it contains."""
    if isinstance(value, ApiType):
        yield value
        value = [getattr(value, each.name) for each in attrs.fields(type(value))]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from parts_of(item)


def test_the_numbers_are_those_of_the_table_of_facts() -> None:
    ours = {
        (message, *each.split("="))
        for message, row in FIELD_NUMBERS.items()
        for each in row.split()
    }
    table = {
        (
            message.rpartition(".")[2],
            fact.kind.rpartition(".")[2] if fact.field in INLINED else fact.field,
            str(fact.number),
        )
        for message, facts in FACTS.items()
        if message not in WRITTEN_BY_HAND
        for fact in facts
    }
    assert ours - table == set()
    assert table - ours == set()
    assert set(FIELD_NUMBERS) == {
        message.rpartition(".")[2] for message in FACTS if message not in WRITTEN_BY_HAND
    }


def test_every_field_of_the_api_has_a_number() -> None:
    def numbered(message: str) -> set[str]:
        names = {each.partition("=")[0] for each in FIELD_NUMBERS[message].split()}
        inner = {name for name in names if name[0].isupper()}
        return (names - inner).union(*(numbered(name) for name in inner))

    lost = {
        f"{type_name}.{field}"
        for type_name, fields in read_api_facts("core.v1.Pod").items()
        for field in fields.keys() - numbered(type_name)
    }
    assert lost == {"Pod.apiVersion", "Pod.kind"}


def test_a_pod_with_every_field_set_is_read_as_it_was_written() -> None:
    assert read_pod(encode_protobuf(FULL_POD)) == FULL_POD
    api_types = {type(part).__name__ for part in parts_of(FULL_POD)}
    assert api_types == set(read_api_facts("core.v1.Pod"))


@pytest.mark.parametrize("part", {type(part): part for part in parts_of(FULL_POD)}.values())
def test_a_part_is_the_same_bytes_alone_and_in_its_pod(part: ApiType) -> None:
    assert encode_protobuf(part) in encode_protobuf(FULL_POD)


@pytest.mark.parametrize(
    "spec",
    [
        PodSpec(volumes=(Volume(name="scratch", empty_dir=EmptyDirVolumeSource()),)),
        PodSpec(host_users=False, priority=0),
        PodSpec(host_network=False, active_deadline_seconds=-1),
        PodSpec(containers=(Container(name="c", args=("", "a")),)),
    ],
    ids=["empty message", "false and zero", "a negative number", "an empty text in a list"],
)
def test_what_is_empty_is_told_from_what_is_absent(spec: PodSpec) -> None:
    assert read_pod(encode_protobuf(Pod(spec=spec))) == Pod(spec=spec)


def test_equal_maps_are_equal_bytes() -> None:
    one, other = {"a": "1", "b": "2"}, {"b": "2", "a": "1"}
    assert encode_protobuf(ObjectMeta(labels=one)) == encode_protobuf(ObjectMeta(labels=other))


def test_the_bytes_are_those_of_the_wire_format() -> None:
    pod = Pod(metadata=ObjectMeta(name="web", labels={"app": "w"}), spec=PodSpec(priority=300))
    assert encode_protobuf(pod) == (
        b"\x0a\x0f" b"\x0a\x03web" b"\x5a\x08" b"\x0a\x03app" b"\x12\x01w"  # metadata
        b"\x12\x04" b"\xc8\x01" b"\xac\x02"  # spec: field 25, the number 300
        b"\x1a\x00"  # status
    )  # fmt: skip


def test_a_field_without_a_number_is_an_error() -> None:
    with pytest.raises(TypeError, match="no numbers for fields of CertificateSigningRequest"):
        encode_protobuf(CertificateSigningRequest())

    @attrs.frozen
    class HostIP(ApiType):
        ip: str = ""
        zone: str = ""

    with pytest.raises(TypeError, match="no numbers for fields of HostIP: zone"):
        encode_protobuf(HostIP())
