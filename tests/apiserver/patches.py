"""Strategic merge patch and merge patch, by the merge keys that the API's types declare.

Nothing is changed in place. Directives: `$patch` (replace, delete), `$setElementOrder/x`,
`$deleteFromPrimitiveList/x` and `$retainKeys`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

FACTS = Path(__file__).parents[1] / "facts" / "kubernetes-api-1.36.tsv"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


@frozen
class Field:
    """What a patch must know of a field: its type, and how lists are merged."""

    type: str
    merges: bool = False
    key: str = ""


def _read_facts() -> dict[str, dict[str, Field]]:
    types: dict[str, dict[str, Field]] = {}
    for line in FACTS.read_text().splitlines():
        what, owner, *rest = line.split("\t")
        if what != "field":
            continue
        name, type_ = rest[0], rest[1].strip("[]")
        marks = dict(mark.split("=") for mark in " ".join(rest[2:]).split() if "=" in mark)
        merges = "merge" in marks.get("patch", "").split(",")
        types.setdefault(owner, {})[name] = Field(type_, merges, marks.get("merge-key", ""))
    return types


_TYPES = _read_facts()
_TYPE_OF_KIND = {name.rpartition(".")[2]: name for name in sorted(_TYPES)}


def strategic_merge(kind: str, data: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of a kind with a strategic merge patch applied."""
    return _merge_object(_TYPE_OF_KIND.get(kind, ""), data, patch)


def json_merge(data: Any, patch: Any) -> Any:
    """Return data with a merge patch (RFC 7386) applied."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(data) if isinstance(data, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = json_merge(merged.get(name), value)
    return merged


def _merge_object(type_: str, data: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    merged = dict(data)
    retained = patch.get("$retainKeys")
    if retained is not None:
        merged = {name: value for name, value in merged.items() if name in retained}
    fields = _TYPES.get(type_, {})
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            merged.pop(name, None)
        else:
            field = fields.get(name, Field(""))
            order = patch.get(f"{_ORDER}{name}")
            merged[name] = _merge_value(field, merged.get(name), value, order)
    for name, gone in patch.items():
        if name.startswith(_DELETE):
            there = merged.get(name.removeprefix(_DELETE), [])
            merged[name.removeprefix(_DELETE)] = [item for item in there if item not in gone]
    return merged


def _merge_value(field: Field, before: Any, value: Any, order: list[Any] | None) -> Any:
    if isinstance(value, Mapping):
        known = before if isinstance(before, Mapping) else {}
        if field.type.startswith("map<"):
            return json_merge(known, value)
        return _merge_object(field.type, known, value)
    if not isinstance(value, list) or not field.merges:
        return value
    known_items = before if isinstance(before, list) else []
    if not field.key:
        return _ordered(known_items, value)
    return _merge_list(field, known_items, value, order)


def _merge_list(
    field: Field, before: list[Any], patch: list[Any], order: list[Any] | None
) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged = {item[field.key]: item for item in before}
    for item in patch:
        key = item[field.key]
        if item.get("$patch") == "delete":
            merged.pop(key, None)
        else:
            merged[key] = _merge_object(field.type, merged.get(key, {}), item)
    wished = [item[field.key] for item in (patch if order is None else order)]
    keys = _ordered([item[field.key] for item in before], wished)
    return [merged[key] for key in keys if key in merged]


def _ordered(before: list[Any], wished: list[Any]) -> list[Any]:
    """Return the keys in the wished order; others stay before those they stood before."""
    others = [key for key in before if key not in wished]
    ordered: list[Any] = []
    for key in wished:
        while key in before and others and before.index(others[0]) < before.index(key):
            ordered.append(others.pop(0))
        ordered.append(key)
    return ordered + others
