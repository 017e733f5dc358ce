"""Turns API objects into JSON-like data and back, by rules made from the classes.

`decode` takes what `documents.py` or orjson loaded. As in the API server, null means absent,
unknown fields are skipped (`unknown_fields` lists them) and a value of the wrong type is an
error; all errors of an object come at once, each with its path. cattrs makes one function for
each class on its first use, so that importing costs nothing.
"""

import base64
import binascii
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    Converter,
    IterableValidationNote,
)
from cattrs.cols import homogenous_tuple_structure_factory, mapping_structure_factory
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from trio_kubelet.foreign_text import LONE_SURROGATE, is_unicode
from trio_kubelet.k8s.base import AlwaysWritten, ApiType, IntegerBits, wire_name
from trio_kubelet.k8s.errors import ErrorKind, FieldError, ValidationError, child
from trio_kubelet.k8s.intstr import IntOrString
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.time import Duration, MicroTime, Time

A = TypeVar("A", bound=ApiType)
Hook = Callable[[Any, Any], Any]


def decode(cls: type[A], data: object) -> A:
    """Make an object of JSON-like data; raises ValidationError with all that does not fit."""
    try:
        return _converter.structure(data, cls)
    except (BaseValidationError, _MisfitError) as error:
        raise ValidationError(_field_errors(error, "")) from None


def encode(value: ApiType) -> dict[str, Any]:
    """Make JSON-like data of an object; what is absent or empty is left out."""
    data: dict[str, Any] = _converter.unstructure(value)
    return data


def unknown_fields(cls: type[ApiType], data: object) -> tuple[str, ...]:
    """Return the paths of fields that the class does not have, for strict readers to warn of."""
    return tuple(_unknown(cls, data, ""))


class _MisfitError(ValueError):
    """A value that its field cannot hold."""

    def __init__(self, value: object, detail: str) -> None:
        super().__init__(detail)
        self.value = value
        self.detail = detail


def _field_errors(error: BaseException, path: str) -> Iterator[FieldError]:
    if not isinstance(error, BaseValidationError):
        value = error.value if isinstance(error, _MisfitError) else None
        yield FieldError(path, ErrorKind.INVALID, value, str(error))
        return
    names = _wire_names(error.cl) if isinstance(error, ClassValidationError) else {}
    for inner in error.exceptions:
        inner_path = path
        for note in getattr(inner, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                inner_path = child(path, names[note.name])
            elif isinstance(note, IterableValidationNote):
                inner_path = f"{path}[{note.index}]"
        yield from _field_errors(inner, inner_path)


@cache
def _wire_names(cls: type) -> dict[str, str]:
    return {attribute.name: wire_name(attribute) for attribute in attrs.fields(cls)}


def _structure_text(value: Any, _: Any) -> str:
    if value.__class__ is str:
        if is_unicode(value):
            return value
        raise _MisfitError(value, LONE_SURROGATE)
    if value is None:
        return ""
    raise _MisfitError(value, "must be a string")


def _structure_bool(value: Any, _: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _MisfitError(value, "must be true or false")
    return value


def _structure_integer(bits: int) -> Hook:
    limit = 1 << (bits - 1)

    def structure(value: Any, _: Any) -> int:
        if value.__class__ is int and -limit <= value < limit:
            return value
        if value is None:
            return 0
        if value.__class__ is int:
            raise _MisfitError(value, f"must be an integer of {bits} bits")
        raise _MisfitError(value, "must be an integer")

    return structure


def _structure_int_or_string(value: Any, _: Any) -> IntOrString:
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise _MisfitError(value, "must be an integer or a string")
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        raise _MisfitError(value, "must be an integer of 32 bits or a string")
    if isinstance(value, str):
        _structure_text(value, _)
    return IntOrString(0 if value is None else value)


def _structure_quantity(value: Any, _: Any) -> Quantity:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise _MisfitError(value, "must be a quantity such as 100m or 1Gi")
    try:
        return Quantity("0" if value is None else str(value).strip())
    except ValueError as error:
        raise _MisfitError(value, str(error)) from None


def _structure_by(parse: Callable[[str], object], what: str) -> Hook:
    def structure(value: Any, _: Any) -> object:
        if not isinstance(value, str):
            raise _MisfitError(value, f"must be {what}")
        try:
            return parse(value)
        except ValueError:
            raise _MisfitError(value, f"must be {what}") from None

    return structure


def _structure_bytes(value: Any, _: Any) -> bytes:
    if not isinstance(value, str | None):
        raise _MisfitError(value, "must be base64 text")
    try:
        return base64.b64decode(value or "", validate=True)
    except binascii.Error:
        raise _MisfitError(value, "must be base64 text") from None


def _is_api_type(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, ApiType)


def _structure_object_factory(cls: Any, converter: Any) -> Hook:
    """Make the hook of one class: null is an empty object, anything but an object an error."""
    renames: dict[str, Any] = {
        name: override(rename=wire) for name, wire in _wire_names(cls).items()
    }
    structure_mapping = make_dict_structure_fn(cls, converter, **renames)

    def structure(value: Any, wanted: Any) -> Any:
        if value.__class__ is dict:
            return structure_mapping(value, wanted)
        if value is None:
            return cls()
        raise _MisfitError(value, "must be an object")

    return structure


def _unstructure_object_factory(cls: Any, converter: Any) -> Callable[[Any], Any]:
    overrides: dict[str, Any] = {
        attribute.name: override(
            rename=wire_name(attribute), omit_if_default=not _is_always_written(attribute.type)
        )
        for attribute in attrs.fields(cls)
    }
    return make_dict_unstructure_fn(cls, converter, **overrides)


def _structure_list_factory(cls: Any, converter: Any) -> Hook:
    structure_items: Hook = homogenous_tuple_structure_factory(cls, converter)

    def structure(value: Any, wanted: Any) -> Any:
        if value.__class__ is list:
            return structure_items(value, wanted)
        if value is None:
            return ()
        raise _MisfitError(value, "must be a list")

    return structure


def _structure_map_factory(cls: Any, converter: Any) -> Hook:
    structure_items: Hook = mapping_structure_factory(cls, converter)

    def structure(value: Any, wanted: Any) -> Any:
        if value.__class__ is dict:
            return structure_items(value, wanted)
        if value is None:
            return {}
        raise _MisfitError(value, "must be an object")

    return structure


def _has_origin(origin: Any) -> Callable[[Any], bool]:
    return lambda cls: get_origin(cls) is origin


def _is_always_written(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated and AlwaysWritten in annotation.__metadata__


def _structure_annotated_factory(annotation: Any, converter: Any) -> Hook:
    plain = get_args(annotation)[0]
    for mark in annotation.__metadata__:
        if isinstance(mark, IntegerBits):
            return _structure_integer(mark.bits)
    hook: Hook = converter.get_structure_hook(plain)
    return hook


def _make_converter() -> Converter:
    converter = Converter(unstruct_collection_overrides={tuple: list})
    leaves: dict[type, Hook] = {
        str: _structure_text,
        bool: _structure_bool,
        bytes: _structure_bytes,
        IntOrString: _structure_int_or_string,
        Quantity: _structure_quantity,
        Time: _structure_by(Time.parse, "a time such as 2026-01-31T12:00:00Z"),
        MicroTime: _structure_by(MicroTime.parse, "a time such as 2026-01-31T12:00:00.000000Z"),
        Duration: _structure_by(Duration.parse, "a duration such as 1h2m0.5s"),
    }
    for cls, hook in leaves.items():
        converter.register_structure_hook(cls, hook)
    converter.register_structure_hook_func(partial(operator.is_, object), lambda value, _: value)
    for cls in (Quantity, Time, MicroTime, Duration):
        converter.register_unstructure_hook(cls, str)
    converter.register_unstructure_hook(IntOrString, lambda value: value.value)
    converter.register_unstructure_hook(bytes, lambda value: base64.b64encode(value).decode())
    factories: dict[Callable[[Any], bool], Callable[[Any, Any], Hook]] = {
        _is_api_type: _structure_object_factory,
        _has_origin(tuple): _structure_list_factory,
        _has_origin(Mapping): _structure_map_factory,
        _has_origin(Annotated): _structure_annotated_factory,
    }
    for predicate, factory in factories.items():
        converter.register_structure_hook_factory(predicate)(factory)
    converter.register_unstructure_hook_factory(_is_api_type)(_unstructure_object_factory)
    return converter


_converter = _make_converter()


@cache
def _fields_by_wire_name(cls: type) -> dict[str, Any]:
    return {wire_name(attribute): attribute.type for attribute in attrs.fields(cls)}


def _unknown(annotation: Any, data: object, path: str) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _unknown(get_args(annotation)[0], data, path)
    elif origin in (Union, UnionType):
        for option in get_args(annotation):
            if option is not NoneType:
                yield from _unknown(option, data, path)
    elif origin is tuple and isinstance(data, list):
        for index, item in enumerate(data):
            yield from _unknown(get_args(annotation)[0], item, f"{path}[{index}]")
    elif origin is Mapping and isinstance(data, dict):
        for key, item in data.items():
            yield from _unknown(get_args(annotation)[1], item, f"{path}[{key}]")
    elif _is_api_type(annotation) and isinstance(data, dict):
        known = _fields_by_wire_name(annotation)
        for key, item in data.items():
            if key in known:
                yield from _unknown(known[key], item, child(path, key))
            else:
                yield child(path, key)
