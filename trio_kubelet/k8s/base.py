"""What all API object classes share, and the marks that carry facts of the wire format.

A class here is a frozen value. Absent and empty are the same for text, lists and maps, as in
the API; booleans, numbers and messages are None when absent. `codec.py` reads the marks: the
name on the wire where it does not follow from the Python name, the width of an integer, and
whether a field is written even when it is empty.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from attrs import Attribute, fields, frozen

T = TypeVar("T")


@frozen
class IntegerBits:
    """How wide a (signed) integer is on the wire."""

    bits: int


class AlwaysWritten:
    """Marks a field that the API requires: it is encoded even when it is empty."""


Int32 = Annotated[int, IntegerBits(32)]
Int64 = Annotated[int, IntegerBits(64)]
Mandatory = Annotated[T, AlwaysWritten]


def wire(name: str) -> dict[str, str]:
    """Field metadata: the JSON name, where camelCase of the Python name is not it."""
    return {"wire": name}


def wire_name(attribute: "Attribute[object]") -> str:
    """Return the JSON name of a field."""
    name: str | None = attribute.metadata.get("wire")
    if name is not None:
        return name
    first, *rest = attribute.name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


@frozen(repr=False)
class ApiType:
    """Base of the API objects and their parts. Its `repr` shows only what is set."""

    def __repr__(self) -> str:
        cls = type(self)
        shown = []
        for attribute in fields(cls):
            value = getattr(self, attribute.name)
            if value is None or value is False or value in ("", (), 0):
                continue
            if isinstance(value, Mapping) and not value:
                continue
            shown.append(f"{attribute.name}={value!r}")
        return f"{cls.__name__}({', '.join(shown)})"
