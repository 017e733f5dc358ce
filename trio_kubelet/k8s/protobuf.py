"""Writes a pod as the API's protobuf, which is what clients of the node's pods socket read.

The classes say what a field holds, `protobuf_numbers.py` which number it has. How a class is
written is made out once, on its first use; a field without a number is an error then, so that
nothing of a pod is lost in silence. What is absent is not written. A message that is there but
empty is (`emptyDir: {}`), and so are false and 0 where the API tells them from nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import attrs

from trio_kubelet.k8s.base import ApiType, wire_name
from trio_kubelet.k8s.intstr import IntOrString
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.k8s.protobuf_numbers import FIELD_NUMBERS
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.time import SECOND_NS, Time

VARINT, WITH_LENGTH = 0, 2
"""Types on the wire: a number, and bytes that follow their length."""

KIND_OF_OBJECT = frozenset({"apiVersion", "kind"})
"""Fields of a pod that have no number: where it is sent as protobuf its type is known."""

KEY, VALUE = 1, 2
"""The numbers in an entry of a map."""

Write = Callable[[bytearray, Any], None]
"""Appends a field with its number; nothing if the value is an empty text, list or map."""
Encode = Callable[[Any], bytes]


def encode_protobuf(value: ApiType) -> bytes:
    """Encode a pod or a part of one. Raises TypeError for an object that pods do not contain."""
    return _encode_object(type(value), value)


def _encoded(writes: Sequence[tuple[str, Write]], value: object) -> bytes:
    encoded = bytearray()
    for attribute, write in writes:
        held = getattr(value, attribute) if attribute else value
        if held is not None:
            write(encoded, held)
    return bytes(encoded)


@cache
def _fields_written(cls: Any, message: str) -> Sequence[tuple[str, Write]]:
    """Return each field of a message with its writer; "" stands for the object itself."""
    numbers = _numbers(message)
    fields = {wire_name(attribute): attribute for attribute in attrs.fields(cls)}
    if message == cls.__name__ and (lost := fields.keys() - _names(message) - KIND_OF_OBJECT):
        raise TypeError(f"no numbers for fields of {message}: {', '.join(sorted(lost))}")
    return tuple(
        ("", _write_inner(number, cls, name))
        if name[0].isupper()
        else (fields[name].name, _write(number, fields[name].type))
        for name, number in numbers.items()
    )


def _numbers(message: str) -> Mapping[str, int]:
    if message not in FIELD_NUMBERS:
        raise TypeError(f"no numbers for fields of {message}")
    pairs = (each.split("=") for each in FIELD_NUMBERS[message].split())
    return {name: int(number) for name, number in pairs}


def _names(message: str) -> frozenset[str]:
    """The fields of a message and of those that JSON does not show."""
    return frozenset[str]().union(
        *(_names(name) if name[0].isupper() else {name} for name in _numbers(message))
    )


def _write_inner(number: int, cls: Any, message: str) -> Write:
    """Write those fields of an object that have a message of their own; none if it is empty."""
    writes = _fields_written(cls, message)
    write = _write_bytes(number)

    def write_inner(encoded: bytearray, value: object) -> None:
        if inner := _encoded(writes, value):
            write(encoded, inner)

    return write_inner


def _write(number: int, annotation: Any) -> Write:
    """Return the writer of a field of that type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _write(number, arguments[0])
    if origin is tuple:
        return _write_list(number, arguments[0])
    if origin is Mapping:
        item = arguments[1]
        return _write_free_form(number) if item is object else _write_map(number, item)
    if NoneType in arguments:
        (present,) = (each for each in arguments if each is not NoneType)
        return _write_one(number, present)
    write = _write_one(number, annotation)
    return _unless_empty(write) if annotation is str else write


def _write_one(number: int, kind: Any) -> Write:
    """Write a value that is there, whatever it is."""
    if get_origin(kind) is Annotated:
        return _write_one(number, get_args(kind)[0])
    if kind in (bool, int):
        key = _key(number, VARINT)

        def write_number(encoded: bytearray, value: int) -> None:
            encoded += key + _varint(value)

        return write_number
    return _write_bytes(number, _LEAVES.get(kind) or partial(_encode_object, kind))


def _write_bytes(number: int, encode: Encode = bytes) -> Write:
    key = _key(number, WITH_LENGTH)

    def write(encoded: bytearray, value: object) -> None:
        data = encode(value)
        encoded += key + _varint(len(data)) + data

    return write


def _unless_empty(write: Write) -> Write:
    def write_if_any(encoded: bytearray, value: object) -> None:
        if value:
            write(encoded, value)

    return write_if_any


def _write_list(number: int, item: Any) -> Write:
    write = _write_one(number, item)

    def write_items(encoded: bytearray, values: Sequence[object]) -> None:
        for value in values:
            write(encoded, value)

    return write_items


def _write_map(number: int, item: Any) -> Write:
    """Write entries in the order of their keys, so that equal maps are equal bytes."""
    write_key, write_value = _write_one(KEY, str), _write_one(VALUE, item)
    write_entry = _write_bytes(number)

    def write_entries(encoded: bytearray, entries: Mapping[str, object]) -> None:
        for name in sorted(entries):
            entry = bytearray()
            write_key(entry, name)
            write_value(entry, entries[name])
            write_entry(encoded, entry)

    return write_entries


def _write_free_form(number: int) -> Write:
    """Write the JSON text of an object of any form, as a message of one field (`FieldsV1`)."""
    return _unless_empty(_write_bytes(number, lambda value: _message(_text, dumps(value))))


def _encode_object(cls: Any, value: ApiType) -> bytes:
    # Classes are looked up when a value is met: a pod has parts of few of them.
    return _encoded(_fields_written(cls, cls.__name__), value)


def _message(write: Write, value: object) -> bytes:
    encoded = bytearray()
    write(encoded, value)
    return bytes(encoded)


def _encode_port(port: IntOrString) -> bytes:
    """Encode a number or a name: which of them it is (0 or 1), the number, the name."""
    encoded = bytearray()
    if isinstance(port.value, int):
        _write_one(2, int)(encoded, port.value)
    else:
        _write_one(1, int)(encoded, 1)
        _write_one(3, str)(encoded, port.value)
    return bytes(encoded)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    """Encode a number, seven bits in a byte; a negative one as its two's complement of 64 bits."""
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_number, _text = _write_one(1, int), _write_bytes(1)

_LEAVES: Mapping[Any, Encode] = {
    str: str.encode,
    Quantity: lambda quantity: _message(_text, str(quantity).encode()),
    Time: lambda time: _message(_number, time.ns // SECOND_NS),
    IntOrString: _encode_port,
}
