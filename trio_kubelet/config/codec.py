"""The declaration of the configuration's fields, and their way from JSON and back.

The API tells two kinds of optional fields apart. A plain field cannot say "zero": `maxPods: 0`
means the default, and a zero is left out when it is written. A nullable field (a pointer in the
API) can: `healthzPort: 0` switches the port off. `option` declares the first kind, `nullable`
the second. A field that the agent does not act on says so there; `support.py` tells users.

`decode` goes on after a mistake and reports every one, with the path of the field; unknown
fields are reported apart, because the caller may choose to live with them. Types are strict as
in the Go kubelet: `maxPods: "10"` is a mistake. `to_wire` is the way back: what it writes,
`decode` reads as an equal value. (cattrs would name the Python attributes in its errors, and
has no notion of a zero that means "default".)
"""

import types
from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs
from attrs import evolve, frozen

from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.time import Duration

T = TypeVar("T")
_INVALID = object()
INT32 = 32
INT64 = 64


@frozen(kw_only=True)
class Support:
    """The agent's support of a field, an option or a flag."""

    reason: str = ""
    """Why the agent does not do what it is told, or only a part, for the documentation."""
    suffices: Callable[[Any], bool] | None = None
    """True for a value that the agent acts on; None if it acts on none but the default."""
    acts_as_with: Any = None
    """The value that the agent always acts as if the field had."""
    without_effect: bool = False
    """True if it does nothing in the Go kubelet either, or is for what this agent needs not."""


ACTED_ON = Support()
WITHOUT_EFFECT = Support(without_effect=True)


def never(reason: str, suffices: Callable[[Any], bool] | None = None) -> Support:
    """The support of what will not come, or only as far as `suffices` says."""
    return Support(reason=reason, suffices=suffices)


@frozen
class ApiField:
    """The API's side of a field: its name, whether zero counts as a value, the width of an int."""

    name: str
    support: Support = ACTED_ON
    nullable: bool = False
    bits: int = INT32
    always: bool = False
    """Written even when it is zero (the API has no `omitempty` there)."""
    nanoseconds: bool = False
    """A duration that may also be given as a number."""


# What these return is an attrs field; for the type checker it is the field's default.
def option(
    name: str,
    default: Any = None,
    support: Support = ACTED_ON,
    *,
    bits: int = INT32,
    always: bool = False,
    nanoseconds: bool = False,
) -> Any:
    """A field in which zero (0, "", false, 0s) means `default`; an empty list does not."""
    return _field(
        ApiField(name, support, bits=bits, always=always, nanoseconds=nanoseconds), default
    )


def nullable(
    name: str, default: Any = None, support: Support = ACTED_ON, *, bits: int = INT32
) -> Any:
    """A field in which only absence means `default`."""
    return _field(ApiField(name, support, nullable=True, bits=bits), default)


def part(name: str, cls: type[Any], support: Support = ACTED_ON) -> Any:
    """A field with fields of its own; absent, each of those has its default."""
    return attrs.field(factory=cls, metadata={ApiField: ApiField(name, support)})


def api_field_of(attribute: "attrs.Attribute[Any]") -> ApiField:
    """The API's facts of a declared field."""
    api_field: ApiField = attribute.metadata[ApiField]
    return api_field


def seconds(count: float) -> timedelta:
    """A duration that was declared in seconds."""
    return timedelta(seconds=count)


def _field(api_field: ApiField, default: Any) -> Any:
    if isinstance(default, Mapping):
        return attrs.field(factory=lambda: dict(default), metadata={ApiField: api_field})
    return attrs.field(default=default, metadata={ApiField: api_field})


@frozen
class Decoded(Generic[T]):
    """The decoded value (defaults where a field was wrong), and the problems that were found."""

    value: T
    problems: tuple[str, ...]
    unknown: tuple[str, ...]
    """Paths of fields that the class does not have."""


def decode(cls: type[T], document: Any) -> Decoded[T]:
    """`document`, made of dicts, lists and scalars, as a `cls`. Raises nothing."""
    decoder = _Decoder()
    value = decoder.part(cls, document, "")
    return Decoded(value, tuple(decoder.problems), tuple(decoder.unknown))


def to_wire(value: Any) -> dict[str, Any]:
    """The JSON form of a configuration class, without apiVersion and kind.

    A zero is left out where absence means the same, durations excepted, which the API always
    writes.
    """
    result = {}
    for attribute, api_field, _ in _fields(type(value)):
        member = getattr(value, attribute.name)
        if member is None or (_is_zero(member) and _may_be_left_out(attribute, api_field)):
            continue
        result[api_field.name] = _encode(member)
    return result


def field_at(cls: type[Any], wire_name: str) -> str:
    """The attribute of `cls` that the API calls `wire_name`. KeyError if there is none."""
    return {api_field.name: attribute.name for attribute, api_field, _ in _fields(cls)}[wire_name]


Fields = tuple[tuple["attrs.Attribute[Any]", ApiField, Any], ...]


def _fields(cls: type[Any]) -> Fields:
    """The attributes of `cls`, what the API calls them, and their types without None."""
    return _fields_once(cast("Hashable", cls))


@cache
def _fields_once(cls: Any) -> Fields:
    hints = get_type_hints(cls)
    return tuple(
        (attribute, api_field_of(attribute), _without_none(hints[attribute.name]))
        for attribute in attrs.fields(cls)
    )


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    (only,) = (member for member in get_args(hint) if member is not types.NoneType)
    return only


def _is_zero(member: Any) -> bool:
    if attrs.has(type(member)) or isinstance(member, timedelta):
        return False
    return not member


def _may_be_left_out(attribute: "attrs.Attribute[Any]", api_field: ApiField) -> bool:
    if api_field.always or api_field.nullable:
        return False
    default: Any = attribute.default
    return not (default.factory() if hasattr(default, "factory") else default)


def _encode(member: Any) -> Any:
    if attrs.has(type(member)):
        return to_wire(member)
    if isinstance(member, timedelta):
        return format_duration(member)
    if isinstance(member, Quantity):
        return str(member)
    if isinstance(member, Mapping):
        return {key: _encode(item) for key, item in member.items()}
    if isinstance(member, tuple | list):
        return [_encode(item) for item in member]
    return member


class _Decoder:
    """One pass over a document. Methods return `_INVALID` after they noted a problem."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unknown: list[str] = []

    def part(self, cls: type[T], document: Any, path: str) -> T:
        if not isinstance(document, Mapping):
            self._refuse(path, document, "must be an object")
            return cls()
        fields = _fields(cls)
        known = {api_field.name for _, api_field, _ in fields}
        self.unknown += (_join(path, str(key)) for key in document if key not in known)
        members = {}
        for attribute, api_field, hint in fields:
            raw = document.get(api_field.name)
            if raw is None:
                continue
            member = self._value(hint, raw, _join(path, api_field.name), api_field)
            if member is _INVALID or (not api_field.nullable and _means_default(member)):
                continue
            members[attribute.name] = member
        return cls(**members)

    def _value(self, hint: Any, raw: Any, path: str, api_field: ApiField) -> Any:
        if hint is Any:
            return raw
        if attrs.has(hint):
            return self.part(hint, raw, path)
        origin = get_origin(hint)
        if origin is tuple:
            return self._list(get_args(hint)[0], raw, path, api_field)
        if origin is not None:
            return self._map(get_args(hint)[1], raw, path, api_field)
        return self._scalar(hint, raw, path, api_field)

    def _list(self, hint: Any, raw: Any, path: str, api_field: ApiField) -> Any:
        if not isinstance(raw, list):
            return self._refuse(path, raw, "must be a list")
        items = [
            self._value(hint, item, f"{path}[{index}]", api_field) for index, item in enumerate(raw)
        ]
        return _INVALID if _INVALID in items else tuple(items)

    def _map(self, hint: Any, raw: Any, path: str, api_field: ApiField) -> Any:
        if not isinstance(raw, Mapping):
            return self._refuse(path, raw, "must be an object")
        items = {
            str(key): self._value(hint, item, f"{path}[{key}]", api_field)
            for key, item in raw.items()
            if item is not None
        }
        return _INVALID if _INVALID in items.values() else items

    def _scalar(self, hint: Any, raw: Any, path: str, api_field: ApiField) -> Any:
        if hint is bool:
            return raw if isinstance(raw, bool) else self._refuse(path, raw, "must be a boolean")
        if hint is int:
            return self._integer(raw, path, api_field)
        if hint is float:
            if isinstance(raw, bool) or not isinstance(raw, int | float):
                return self._refuse(path, raw, "must be a number")
            return self._number(raw, path)
        if hint is timedelta:
            return self._duration(raw, path, api_field)
        if hint is Quantity:
            return self._quantity(raw, path)
        return raw if isinstance(raw, str) else self._refuse(path, raw, "must be a string")

    def _integer(self, raw: Any, path: str, api_field: ApiField) -> Any:
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            return self._refuse(path, raw, "must be an integer")
        if not -(2 ** (api_field.bits - 1)) <= raw < 2 ** (api_field.bits - 1):
            return self._refuse(path, raw, f"must fit into {api_field.bits} bits")
        return raw

    def _number(self, raw: float, path: str) -> Any:
        try:
            return float(raw)
        except OverflowError:
            return self._refuse(path, raw, "must fit into 64 bits")

    def _duration(self, raw: Any, path: str, api_field: ApiField) -> Any:
        if api_field.nanoseconds and isinstance(raw, int) and not isinstance(raw, bool):
            nanoseconds = self._integer(raw, path, evolve(api_field, bits=INT64))
            return _INVALID if nanoseconds is _INVALID else from_nanoseconds(nanoseconds)
        if not isinstance(raw, str):
            return self._refuse(path, raw, "must be a duration like 1m30s")
        try:
            return parse_duration(raw)
        except ValueError as error:
            return self._refuse(path, raw, str(error))

    def _quantity(self, raw: Any, path: str) -> Any:
        if isinstance(raw, bool) or not isinstance(raw, str | int):
            return self._refuse(path, raw, "must be a quantity like 10Mi")
        try:
            return Quantity(raw)
        except ValueError as error:
            return self._refuse(path, raw, str(error))

    def _refuse(self, path: str, raw: Any, reason: str) -> Any:
        shown = f'"{raw}"' if isinstance(raw, str) else _shown(raw)
        self.problems.append(f"{path or '<document>'}: Invalid value: {shown}: {reason}")
        return _INVALID


def _shown(raw: Any) -> str:
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, Mapping):
        return "an object"
    return "a list" if isinstance(raw, list) else str(raw)


def _means_default(member: Any) -> bool:
    return isinstance(member, bool | int | str | timedelta) and not member


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def parse_duration(text: str) -> timedelta:
    """The duration that `text` spells. Raises ValueError with the reason for a malformed one."""
    return from_nanoseconds(Duration.parse(text).ns)


def from_nanoseconds(nanoseconds: int) -> timedelta:
    """The same as a timedelta, which counts microseconds.

    What is shorter than one becomes one, so that a duration that was given never reads as "not
    set".
    """
    microseconds = -(-abs(nanoseconds) // 1_000)
    return timedelta(microseconds=microseconds if nanoseconds >= 0 else -microseconds)


def format_duration(duration: timedelta) -> str:
    """The canonical spelling: `0s`, `100ms`, `1m0s`, `4h0m0s`."""
    return str(Duration(duration // timedelta(microseconds=1) * 1_000))
