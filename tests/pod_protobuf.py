"""Pods read from protobuf by the protobuf library, with messages made of the table of facts.

Nothing here knows how the agent writes them.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode

FACTS = Path(__file__).parent / "facts" / "pod-protobuf-1.36.tsv"
INLINED = {"localObjectReference", "ephemeralContainerCommon", "handler", "volumeSource"}
"""Messages whose fields stand in the object itself in JSON."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Field = descriptor_pb2.FieldDescriptorProto


class ProtobufFact(NamedTuple):
    """A line of the table: a field of a message; the kind of a map is `map<string,KIND>`."""

    message: str
    field: str
    number: int
    kind: str
    is_list: bool


def read_facts() -> Mapping[str, list[ProtobufFact]]:
    """The fields of all messages, by the messages' names."""
    facts: dict[str, list[ProtobufFact]] = {}
    for line in FACTS.read_text().splitlines():
        what, message, *columns = line.split("\t")
        of_message = facts.setdefault(message, [])
        if what == "field":
            name, number, kind, *marks = columns
            of_message.append(ProtobufFact(message, name, int(number), kind, "repeated" in marks))
    return facts


def read_pod(data: bytes) -> Pod:
    """Read a pod; ValueError if there is more in it than the table knows."""
    message = _pod_class().FromString(data)
    known = message.SerializeToString()
    message.DiscardUnknownFields()
    if message.SerializeToString() != known:
        raise ValueError("fields that the table does not have")
    return decode(Pod, _json(message))


def _json(message: Any) -> Any:
    """A message in the form that the API has in JSON."""
    name = message.DESCRIPTOR.full_name
    if name == "meta.v1.Time":
        return (EPOCH + timedelta(seconds=message.seconds)).isoformat()
    if name == "resource.Quantity":
        return message.string
    if name == "intstr.IntOrString":
        return message.strVal if message.type else message.intVal
    if name == "meta.v1.FieldsV1":
        return json.loads(message.Raw)
    fields: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name in INLINED:
            fields |= _json(value)
        else:
            fields[field.name] = _json_of_field(field, value)
    return fields


def _json_of_field(field: Any, value: Any) -> Any:
    is_message = field.message_type is not None
    if is_message and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        of_messages = item.message_type is not None
        return {key: _json(value[key]) if of_messages else value[key] for key in value}
    if field.is_repeated:
        return [_json(each) if is_message else each for each in value]
    return _json(value) if is_message else value


@cache
def _pod_class() -> Any:
    packages: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for message, facts in read_facts().items():
        package, _, name = message.rpartition(".")
        file = packages.setdefault(
            package,
            descriptor_pb2.FileDescriptorProto(
                name=f"{package}.proto", package=package, syntax="proto2"
            ),
        )
        _describe(file.message_type.add(name=name), facts, package)
    # In the order in which they need one another.
    order = ("resource", "intstr", "meta.v1", "core.v1")
    pool = descriptor_pool.DescriptorPool()
    for at, package in enumerate(order):
        packages[package].dependency.extend(f"{each}.proto" for each in order[:at])
        pool.Add(packages[package])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("core.v1.Pod"))


def _describe(
    message: descriptor_pb2.DescriptorProto, facts: list[ProtobufFact], package: str
) -> None:
    for fact in facts:
        field = message.field.add(name=fact.field, number=fact.number)
        field.label = Field.LABEL_REPEATED if fact.is_list else Field.LABEL_OPTIONAL
        if not (entry := re.fullmatch(r"map<string,(.*)>", fact.kind)):
            _set_type(field, fact.kind)
            continue
        field.label = Field.LABEL_REPEATED
        name = fact.field[0].upper() + fact.field[1:] + "Entry"
        _set_type(field, f"{package}.{message.name}.{name}")
        nested = message.nested_type.add(name=name)
        nested.options.map_entry = True
        for number, (label, kind) in enumerate((("key", "string"), ("value", entry[1])), 1):
            item = nested.field.add(name=label, number=number, label=Field.LABEL_OPTIONAL)
            _set_type(item, kind)


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if "." in kind:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{kind}"
    else:
        field.type = Field.Type.Value(f"TYPE_{kind.upper()}")
