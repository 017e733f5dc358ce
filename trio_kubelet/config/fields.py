"""The declaration of the configuration's fields: for the codec, and what the agent does with them.

The API tells two kinds of optional fields apart. A plain field cannot say "zero": `maxPods: 0`
means the default, and a zero is left out when it is written. A nullable field (a pointer in the
API) can: `healthzPort: 0` switches the port off. `option` declares the first kind, `nullable`
the second.

A field that the agent does not act on says so where it is declared; `support.py` tells users.
Nothing said means that the agent does what the field asks for.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import attrs
from attrs import frozen

INT32 = 32
INT64 = 64


@frozen(kw_only=True)
class Support:
    """What the agent does with a field, an option or a flag."""

    waits_for: str = ""
    """The capability that is missing; empty if the agent does what it is told."""
    so_far: str = ""
    """What is done, and what not, where it is not nothing; for the documentation."""
    suffices: Callable[[Any], bool] = lambda _: False
    """True for a value that asks for nothing beyond what is done so far."""
    promised: bool = False
    """True if a Go kubelet does something though nobody sets the field."""
    acts_as_with: Any = None
    """The value that the agent always acts as if the field had."""
    without_effect: bool = False
    """True if it does nothing in the Go kubelet either, or is for what this agent needs not."""


ACTED_ON = Support()
WITHOUT_EFFECT = Support(without_effect=True)


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
