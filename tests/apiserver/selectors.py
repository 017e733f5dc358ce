"""Field and label selectors: which objects a list or a watch is about."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Matches = Callable[[Mapping[str, Any]], bool]

_SET_TERM = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_COMMA = re.compile(r",(?![^(]*\))")


def selector(fields: str, labels: str) -> Matches:
    """Return what says whether an object is selected by both."""
    tests = [_field_test(term) for term in fields.split(",") if term]
    tests += [_label_test(term) for term in _COMMA.split(labels) if term]
    return lambda data: all(test(data) for test in tests)


def _field_test(term: str) -> Matches:
    path, equal, wanted = _comparison(term)
    names = path.split(".")

    def test(data: Mapping[str, Any]) -> bool:
        value: Any = data
        for name in names:
            value = value.get(name, "") if isinstance(value, Mapping) else ""
        return (value == wanted) is equal

    return test


def _label_test(term: str) -> Matches:
    match = _SET_TERM.fullmatch(term)
    if match:
        name, operator, values = match.groups()
        wanted = {value.strip() for value in values.split(",")}
        inside = operator == "in"
        return lambda data: (_labels(data).get(name) in wanted) is inside
    if "=" in term:
        name, equal, value = _comparison(term)
        return lambda data: (_labels(data).get(name) == value) is equal
    absent = term.startswith("!")
    name = term.lstrip("!").strip()
    return lambda data: (name in _labels(data)) is not absent


def _comparison(term: str) -> tuple[str, bool, str]:
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        name, found, value = term.partition(sign)
        if found:
            return name.strip(), equal, value.strip()
    raise ValueError(f"{term!r} compares nothing")


def _labels(data: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = data["metadata"].get("labels") or {}
    return labels
