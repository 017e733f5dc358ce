"""The declaration of the configuration's fields, and the facts that the codec reads off it.

The API tells two kinds of optional fields apart. A plain field cannot say "zero": `maxPods: 0`
means the default, and a zero is left out when it is written. A nullable field (a pointer in the
API) can: `healthzPort: 0` switches the port off. `option` declares the first kind, `nullable`
the second.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import attrs
from attrs import frozen

INT32 = 32
INT64 = 64


@frozen
class ApiField:
    """The API's side of a field: its name, whether zero counts as a value, the width of an int."""

    name: str
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
    *,
    bits: int = INT32,
    always: bool = False,
    nanoseconds: bool = False,
) -> Any:
    """A field in which zero (0, "", false, 0s) means `default`; an empty list does not."""
    return _field(ApiField(name, bits=bits, always=always, nanoseconds=nanoseconds), default)


def nullable(name: str, default: Any = None, *, bits: int = INT32) -> Any:
    """A field in which only absence means `default`."""
    return _field(ApiField(name, nullable=True, bits=bits), default)


def part(name: str, cls: type[Any]) -> Any:
    """A field with fields of its own; absent, each of those has its default."""
    return attrs.field(factory=cls, metadata={ApiField: ApiField(name)})


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
