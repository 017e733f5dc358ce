"""The codec says the same as Google's own, for every message of the contract, both ways.

One difference is known and harmless: a map's entry whose key and value are both empty is
dropped by ours. Kubernetes has no such labels, annotations or sysctls.
"""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import betterproto
import betterproto_rust_codec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")

from betterproto.compile.naming import pythonize_class_name
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from grpc_tools import protoc

from trio_kubelet.rpc import is_present, present
from trio_kubelet.rpc.stubs.runtime import v1 as cri

PROTOS = Path(__file__).parents[3] / "protos"
DEPTH = 3

Draw = Callable[[st.SearchStrategy[Any]], Any]
Reference = Any
"""A message of Google's runtime, whose classes are made at run time."""


@cache
def references(folder: str) -> dict[str, type[Reference]]:
    compiled = Path(folder) / "descriptors"
    arguments = ["", f"-I{PROTOS}", f"--descriptor_set_out={compiled}", "runtime/v1/api.proto"]
    assert protoc.main(arguments) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"runtime.v1.{name}"))
        for name in names
    }


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, type[Reference]]:
    return references(str(tmp_path_factory.mktemp("descriptors")))


def ours(name: str) -> type[betterproto.Message]:
    found: type[betterproto.Message] = getattr(cri, pythonize_class_name(name))
    return found


def field_name(message_type: Any, field: Any) -> str:
    name: str = message_type._betterproto.field_name_by_number[field.number]
    return name


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def scalars(field: Any) -> st.SearchStrategy[Any]:
    kind = field.type
    if kind == field.TYPE_ENUM:
        # Numbers that the contract does not name stand for a newer runtime.
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from([*known, 99])
    return {
        field.TYPE_STRING: st.text(max_size=8),
        field.TYPE_BYTES: st.binary(max_size=8),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        field.TYPE_UINT32: st.integers(0, 2**32 - 1),
        field.TYPE_UINT64: st.integers(0, 2**64 - 1),
        field.TYPE_DOUBLE: st.floats(allow_nan=False),
    }[kind]


def fill(draw: Draw, message: Reference, depth: int) -> None:
    """Give the fields of a message values; each may also stay absent."""
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if is_map(field):
            entries = draw(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3))
            if entries.get("") == "":
                del entries[""]
            getattr(message, field.name).update(entries)
        elif field.message_type is not None:
            fill_message(draw, message, field, depth)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(scalars(field), max_size=3)))
        else:
            setattr(message, field.name, draw(scalars(field)))


def fill_message(draw: Draw, message: Reference, field: Any, depth: int) -> None:
    value = getattr(message, field.name)
    if field.is_repeated:
        for _ in range(draw(st.integers(0, 2)) if depth else 0):
            fill(draw, value.add(), depth - 1)
        return
    value.SetInParent()
    if depth:
        fill(draw, value, depth - 1)


def assert_same(message: betterproto.Message, reference: Reference) -> None:
    """Compare field by field, absent apart from empty."""
    for field in reference.DESCRIPTOR.fields:
        mine = getattr(message, field_name(type(message), field))
        theirs = getattr(reference, field.name)
        if is_map(field):
            assert mine == dict(theirs)
        elif field.message_type is None:
            assert (mine == list(theirs)) if field.is_repeated else (mine == theirs)
        elif field.is_repeated:
            assert len(mine) == len(theirs)
            for one, other in zip(mine, theirs, strict=True):
                assert_same(one, other)
        else:
            assert is_present(mine) == reference.HasField(field.name)
            assert_same(mine, theirs)


def built(reference: Reference) -> betterproto.Message:
    """Make the same message by our constructors, as the agent does."""
    message_type = ours(reference.DESCRIPTOR.name)
    arguments: dict[str, Any] = {}
    for field in reference.DESCRIPTOR.fields:
        name = field_name(message_type, field)
        value = getattr(reference, field.name)
        if is_map(field):
            arguments[name] = dict(value)
        elif field.is_repeated:
            arguments[name] = [built(one) if field.message_type else one for one in value]
        elif field.message_type is None:
            arguments[name] = value
        elif reference.HasField(field.name):
            arguments[name] = present(built(value))
    return message_type(**arguments)


def test_the_fast_codec_is_the_one_in_use() -> None:
    assert betterproto.Message.__bytes__.__name__ == "__bytes_patch"
    assert "betterproto_rust_codec" in sys.modules
    assert betterproto_rust_codec.serialize(cri.PodIp(ip="a")) == bytes(cri.PodIp(ip="a"))


@settings(max_examples=300)
@given(data=st.data())
def test_both_codecs_read_and_write_every_message_alike(
    classes: dict[str, type[Reference]], data: st.DataObject
) -> None:
    reference = classes[data.draw(st.sampled_from(sorted(classes)))]()
    fill(data.draw, reference, DEPTH)
    check(reference)


def test_every_message_with_every_field_is_read_and_written_alike(
    classes: dict[str, type[Reference]],
) -> None:
    for message_class in classes.values():
        reference = message_class()
        fill_all(reference)
        check(reference)
        check(message_class())


def fill_all(message: Reference) -> None:
    """Give every field, all the way down, a value that is not its default."""
    samples = {
        descriptor_pb2.FieldDescriptorProto.TYPE_STRING: "é\u0000",
        descriptor_pb2.FieldDescriptorProto.TYPE_BYTES: b"\xff\x00",
        descriptor_pb2.FieldDescriptorProto.TYPE_BOOL: True,
        descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE: -1.5,
        descriptor_pb2.FieldDescriptorProto.TYPE_INT32: -(2**31),
        descriptor_pb2.FieldDescriptorProto.TYPE_INT64: -(2**63),
        descriptor_pb2.FieldDescriptorProto.TYPE_UINT32: 2**32 - 1,
        descriptor_pb2.FieldDescriptorProto.TYPE_UINT64: 2**64 - 1,
        descriptor_pb2.FieldDescriptorProto.TYPE_ENUM: 1,
    }
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if is_map(field):
            value.update({"": "value", "key": "", "both": "ways"})
        elif field.message_type is not None:
            fill_all(value.add() if field.is_repeated else value)
        elif field.is_repeated:
            value.extend([samples[field.type]] * 2)
        else:
            setattr(message, field.name, samples[field.type])


def check(reference: Reference) -> None:
    message_type = ours(reference.DESCRIPTOR.name)
    data = reference.SerializeToString()
    read = message_type().parse(data)
    assert_same(read, reference)
    assert type(reference).FromString(bytes(read)) == reference
    assert type(reference).FromString(bytes(built(reference))) == reference


def test_fields_that_the_contract_does_not_know_are_kept() -> None:
    newer = b"\xf8\x3e\x05\xfa\x3e\x01x"
    message = cri.PodSandbox().parse(b"\x0a\x01a" + newer)
    assert message.id == "a"
    assert bytes(message) == b"\x0a\x01a" + newer


def test_numbers_are_read_packed_and_one_by_one() -> None:
    packed, one_by_one = b"\x42\x02\x01\x02", b"\x40\x01\x40\x02"
    for data in (packed, one_by_one):
        message = cri.LinuxContainerSecurityContext().parse(data)
        assert message.supplemental_groups == [1, 2]
