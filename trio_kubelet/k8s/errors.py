"""The problems of an object, field by field, in the API's words.

Decoding and validation both give `FieldError` values, all of an object at once, so that a
person mends a manifest in one go. A text reads
`spec.containers[1].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535`.
"""

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum

from attrs import frozen

from trio_kubelet.foreign_text import spelled_out


class ErrorKind(StrEnum):
    """The API's kinds of field errors; the values are the words it uses."""

    REQUIRED = "Required value"
    INVALID = "Invalid value"
    DUPLICATE = "Duplicate value"
    UNSUPPORTED = "Unsupported value"
    NOT_FOUND = "Not found"
    FORBIDDEN = "Forbidden"
    TOO_LONG = "Too long"
    TOO_MANY = "Too many"


_WITHOUT_VALUE = frozenset({ErrorKind.REQUIRED, ErrorKind.FORBIDDEN, ErrorKind.TOO_LONG})
_LONGEST_VALUE = 200
"""Longer values are cut when they are shown: a log line is no place for a whole manifest."""


@frozen
class FieldError:
    """One thing that is wrong: where (`spec.containers[1].name`), of which kind, and why."""

    path: str
    kind: ErrorKind
    value: object = None
    detail: str = ""

    def __str__(self) -> str:
        parts = [self.path, self.kind.value] if self.path else [self.kind.value]
        if self.kind not in _WITHOUT_VALUE:
            parts.append(_shown(self.value))
        if self.detail:
            parts.append(self.detail)
        return spelled_out(": ".join(parts))


class ValidationError(ValueError):
    """An object is not what it should be; `errors` says all that is wrong with it."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__(format_errors(self.errors))


def format_errors(errors: Iterable[FieldError]) -> str:
    """Write errors on one line."""
    return "; ".join(str(error) for error in errors)


def required(path: str, detail: str = "") -> FieldError:
    """Say that a field must be set."""
    return FieldError(path, ErrorKind.REQUIRED, None, detail)


def invalid(path: str, value: object, detail: str) -> FieldError:
    """Say what is wrong with a value."""
    return FieldError(path, ErrorKind.INVALID, value, detail)


def all_invalid(path: str, value: object, details: Iterable[str]) -> Iterator[FieldError]:
    """Say everything that is wrong with a value."""
    return (invalid(path, value, detail) for detail in details)


def forbidden(path: str, detail: str) -> FieldError:
    """Say that a field must not be set."""
    return FieldError(path, ErrorKind.FORBIDDEN, None, detail)


def duplicate(path: str, value: object) -> FieldError:
    """Say that a value is there already."""
    return FieldError(path, ErrorKind.DUPLICATE, value)


def not_found(path: str, value: object, detail: str = "") -> FieldError:
    """Say that a name refers to nothing."""
    return FieldError(path, ErrorKind.NOT_FOUND, value, detail)


def unsupported(path: str, value: object, supported: Iterable[str]) -> FieldError:
    """Say which values there are."""
    values = ", ".join(json.dumps(str(one)) for one in sorted(supported))
    return FieldError(path, ErrorKind.UNSUPPORTED, value, f"supported values: {values}")


def too_long(path: str, limit: int) -> FieldError:
    """Say how many bytes a text may have."""
    return FieldError(path, ErrorKind.TOO_LONG, None, f"may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> FieldError:
    """Say how many items a list may have."""
    return FieldError(path, ErrorKind.TOO_MANY, count, f"must have at most {limit} items")


def child(path: str, *names: str) -> str:
    """Return the path of a field below a path."""
    return ".".join((path, *names) if path else names)


def _shown(value: object) -> str:
    if isinstance(value, str | int | float | None | list | dict):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."
