"""Reads YAML and JSON text into plain dicts and lists, as Kubernetes does.

Kubernetes turns YAML into JSON with rules of its own, between YAML 1.1 and 1.2: `yes` and `on`
are booleans, `0644` and `0o644` octal, `12:30:00` and dates stay text, `1e3` is the number 1000,
keys become text. Those rules are applied here to libyaml's events. Building the tree straight
from them also bounds what a hostile file can do: libyaml's own composer overflows its stack
when lists nest deeply, and aliases may not blow up to more than `MAX_NODES`. A key that is given
twice is an error unless the caller takes note of it: one of the two is not what its author meant.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import yaml
from attrs import define, field

MAX_DEPTH = 100
"""Levels of nesting; the deepest valid pod has some 20."""
MAX_NODES = 1_000_000
"""Values in one file, counting those that aliases repeat."""
MAX_CHARACTERS = 16 << 20
"""Of all text in one file, counted in the same way."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"

_TRUE = {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
_FALSE = {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
_BOOLEANS = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_SPECIAL_FLOATS = {
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}.*)?", re.ASCII
)
_LONGEST_NUMBER = 1000
_LARGEST_WHOLE_FLOAT = 1e21
"""From here on JSON writes whole floats with an exponent; below, as integers."""


class DocumentError(ValueError):
    """The text is not YAML or JSON, or not within bounds; the message names line and column."""


def load_documents(data: bytes, doubled: list[str] | None = None) -> list[dict[str, Any]]:
    """Read every document of a file; empty ones are left out.

    Text that starts with `{` is JSON, one document; anything else YAML. Keys that are given twice
    are added to `doubled`, and their last values count. Raises DocumentError, for such a key too
    where there is no `doubled`, and where a document is not a mapping.
    """
    text = _decode_text(data)
    if text.lstrip().startswith("{"):
        documents = [_load_json(text, doubled)]
    else:
        documents = list(_load_yaml(text, doubled))
    loaded = []
    for number, document in enumerate(documents, start=1):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise DocumentError(f"document {number} must be a mapping with apiVersion and kind")
        loaded.append(document)
    return loaded


def _decode_text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text: byte {error.start} cannot be read") from error


def _load_json(text: str, doubled: list[str] | None) -> Any:
    build = partial(_json_object, doubled=doubled)
    try:
        document = json.loads(text, object_pairs_hook=build, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise DocumentError(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise DocumentError(f"nested more than {MAX_DEPTH} levels deep") from error
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(str(error)) from error
    _check_depth(document)
    return document


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH + 1):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise DocumentError(f"nested more than {MAX_DEPTH} levels deep")


def _json_object(pairs: list[tuple[str, Any]], doubled: list[str] | None) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        repeated = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
        if doubled is None:
            raise DocumentError(f"key {repeated[0]!r} is given twice")
        doubled += repeated
    return mapping


def _no_constant(name: str) -> Any:
    raise DocumentError(f"{name} is not JSON")


@define
class _OpenNode:
    """A list or mapping whose end has not come yet.

    `nodes` counts the values in it, `characters` those of its text.
    """

    value: list[Any] | dict[str, Any]
    anchor: str | None
    nodes: int = 1
    characters: int = 0
    key: str | None = None
    merging: bool = False
    merged: list[dict[str, Any]] = field(factory=list)


class _Builder:
    """Builds the documents of one file from its parsing events."""

    def __init__(self, doubled: list[str] | None) -> None:
        self._doubled = doubled
        self._open: list[_OpenNode] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._nodes = 0
        self.document: Any = None

    def feed(self, event: Any) -> None:
        """Take one event in."""
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._start(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._end(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()
            self.document = None

    def _scalar(self, event: Any) -> None:
        if self._awaits_key() and event.implicit[0] and event.value == "<<":
            self._open[-1].merging = True
            return
        value = _scalar_value(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1, len(event.value))
        self._add(value, 1, len(event.value), event)

    def _start(self, event: Any) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise _error(event, f"nested more than {MAX_DEPTH} levels deep")
        if self._awaits_key():
            raise _error(event, "a key must be text")
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            raise _error(event, f"tag {event.tag} is not supported")
        value: list[Any] | dict[str, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._open.append(_OpenNode(value, event.anchor))

    def _end(self, event: Any) -> None:
        closed = self._open.pop()
        for merged in closed.merged:
            for key, value in merged.items():
                closed.value.setdefault(key, value)  # type: ignore[union-attr]
        if closed.anchor is not None:
            self._anchors[closed.anchor] = (closed.value, closed.nodes, closed.characters)
        self._add(closed.value, closed.nodes, closed.characters, event)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise _error(event, f"alias *{event.anchor} has no anchor before it")
        self._add(*self._anchors[event.anchor], event)

    def _awaits_key(self) -> bool:
        if not self._open:
            return False
        top = self._open[-1]
        return isinstance(top.value, dict) and top.key is None and not top.merging

    def _add(self, value: Any, nodes: int, characters: int, event: Any) -> None:
        """Put a finished value where it belongs."""
        if not self._open:
            self.document = value
            return
        top = self._open[-1]
        top.nodes += nodes
        top.characters += characters
        if top.characters > MAX_CHARACTERS:
            what = f"more than {MAX_CHARACTERS} characters; aliases count as what they repeat"
            raise _error(event, what)
        if top.nodes > MAX_NODES:
            raise _error(event, f"more than {MAX_NODES} values; aliases count as what they repeat")
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.merging:
            top.merging = False
            top.merged.extend(_mappings_to_merge(value, event))
        elif top.key is None:
            top.key = _key(value, event)
            if top.key in top.value:
                if self._doubled is None:
                    raise _error(event, f"key {top.key!r} is given twice")
                self._doubled.append(top.key)
        else:
            top.value[top.key] = value
            top.key = None


def _load_yaml(text: str, doubled: list[str] | None) -> Iterator[Any]:
    builder = _Builder(doubled)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            builder.feed(event)
            if isinstance(event, yaml.DocumentEndEvent):
                yield builder.document
    except yaml.MarkedYAMLError as error:
        raise DocumentError(_yaml_message(error)) from error
    except yaml.YAMLError as error:
        raise DocumentError(str(error).replace("\n", " ")) from error


def _yaml_message(error: yaml.MarkedYAMLError) -> str:
    problem = " ".join(part for part in (error.context, error.problem) if part)
    if "nesting depth" in problem:  # libyaml from 0.2.6 on, whose scanner is ahead of the events
        problem = f"nested more than {MAX_DEPTH} levels deep"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return problem
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _error(event: Any, problem: str) -> DocumentError:
    mark = event.start_mark
    return DocumentError(f"line {mark.line + 1}, column {mark.column + 1}: {problem}")


def _mappings_to_merge(value: Any, event: Any) -> list[dict[str, Any]]:
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise _error(event, "<< merges mappings only")
    return mappings


def _key(value: Any, event: Any) -> str:
    """Return a key as text: `80: x` has the key "80", `on: x` the key "true"."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise _error(event, "a key must be text")


def _scalar_value(event: Any) -> Any:
    tag: str | None = event.tag
    text: str = event.value
    if tag in (None, "!"):
        return _plain_value(text) if event.implicit[0] else text
    if tag == f"{_TAG}str":
        return text
    if tag in (f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float", f"{_TAG}null"):
        value = _plain_value(text)
        if isinstance(value, str):
            raise _error(event, f"{text!r} does not fit its tag {tag.removeprefix(_TAG)}")
        return value
    raise _error(event, f"tag {tag} is not supported")


def _plain_value(text: str) -> Any:
    """Return what an unquoted scalar stands for."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if text[0] not in "+-.0123456789" or len(text) > _LONGEST_NUMBER or _DATE.fullmatch(text):
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    if _INTEGER.fullmatch(digits):
        return _integer(digits)
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        return int(number) if _is_whole(number) else number
    return text


def _integer(digits: str) -> int:
    """Read an integer with Go's prefixes, among them a bare 0 for octal."""
    unsigned = digits.lstrip("+-")
    octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
    return int(digits, 8 if octal else 0)


def _is_whole(number: float) -> bool:
    return number.is_integer() and abs(number) < _LARGEST_WHOLE_FLOAT
