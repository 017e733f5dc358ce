"""The base of all API object classes, and the marks that carry facts of the wire format.

A class here is a frozen value. Absent and empty are the same for text, lists and maps, as in
the API; booleans, numbers and messages are None when absent. `codec.py` reads the marks: the
name on the wire where it does not follow from the Python name, the width of an integer, and
whether a field is written even when it is empty.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from attrs import Attribute, Factory, fields, frozen

T = TypeVar("T")


@frozen
class IntegerBits:
    """The bits of a (signed) integer on the wire."""

    bits: int


class AlwaysWritten:
    """Marks a field that the API requires: it is encoded even when it is empty."""


Int32 = Annotated[int, IntegerBits(32)]
Int64 = Annotated[int, IntegerBits(64)]
Mandatory = Annotated[T, AlwaysWritten]


def wire(name: str) -> dict[str, str]:
    """Field metadata: the JSON name, where camelCase of the Python name is not it."""
    return {"wire": name}


def confidential() -> dict[str, bool]:
    """Field metadata: what the field holds never shows in a `repr`, and so in no log."""
    return {"confidential": True}


def wire_name(attribute: "Attribute[Any]") -> str:
    """Return the JSON name of a field."""
    name: str | None = attribute.metadata.get("wire")
    if name is not None:
        return name
    first, *rest = attribute.name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def wire_name_of(cls: "type[ApiType]", name: str) -> str:
    """Return the JSON name of the field of that Python name."""
    return wire_name(getattr(fields(cls), name))


_values_of: dict[type, Callable[[object], Any]] = {}


def _values(instance: "ApiType") -> Any:
    """Return the values of all fields, fetched in one go."""
    cls = type(instance)
    get = _values_of.get(cls)
    if get is None:
        get = _values_of[cls] = attrgetter(*(attribute.name for attribute in fields(cls)))
    return get(instance)


@frozen(repr=False, eq=False)
class ApiType:
    """Base of the API objects and their parts.

    Comparing is shared instead of generated for each class: it makes the import a third faster,
    and comparing whole tuples of values skips parts that are the same object, which most parts
    of two versions of a pod are. The `repr` shows only what is not at its default, and of what is
    confidential only that it is there.
    """

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or bool(_values(self) == _values(other))

    def __hash__(self) -> int:
        return hash(_values(self))

    def __repr__(self) -> str:
        cls = type(self)
        shown = []
        for attribute in fields(cls):
            value = getattr(self, attribute.name)
            default = attribute.default
            if isinstance(default, Factory):  # type: ignore[arg-type]
                default = default.factory()
            if value != default:
                text = "..." if attribute.metadata.get("confidential") else repr(value)
                shown.append(f"{attribute.name}={text}")
        return f"{cls.__name__}({', '.join(shown)})"
