"""Reads the text of a configuration file, YAML or JSON, into dicts, lists and scalars.

Scalars are read as the Go kubelet reads them: `yes` and `on` are booleans, a date is text, and
`10:20` is no number. A key that stands twice is reported; its last value counts.
"""

import json
import re
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any

import yaml
from attrs import field, frozen

_BOOLEAN = re.compile(
    r"^(?:[yYnN]|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$"
)
_INTEGER = re.compile(
    r"^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"
)
_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_MERGE = re.compile(r"^(?:<<)$")


class DocumentError(ValueError):
    """The text is neither YAML nor JSON, or not one object. The message is one line."""


@frozen
class Document:
    """The content of one file, and what was odd about its text."""

    content: dict[str, Any]
    oddities: tuple[str, ...] = field(default=())


def parse(text: str) -> Document:
    """The first document of `text`. Raises DocumentError."""
    try:
        if text.lstrip().startswith("{"):
            with suppress(json.JSONDecodeError):  # YAML has such a flow style too
                return _parse_json(text)
        return _parse_yaml(text)
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except DocumentError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise DocumentError(str(error)) from None


def _parse_json(text: str) -> Document:
    duplicates: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                duplicates.append(_twice(key))
            seen[key] = value
        return seen

    return Document(_as_object(json.loads(text, object_pairs_hook=build)), tuple(duplicates))


def _parse_yaml(text: str) -> Document:
    loader: Any = _Loader(text)
    try:
        if not loader.check_data():
            raise DocumentError("it is empty")
        content = _as_object(loader.get_data())
        more = any(document is not None for document in _rest(loader))
    except DocumentError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise DocumentError(" ".join(str(error).split())) from None
    finally:
        loader.dispose()
    oddities = tuple(loader.duplicates)
    return Document(
        content, (*oddities, "only the first YAML document is read") if more else oddities
    )


def _rest(loader: Any) -> Iterator[Any]:
    while loader.check_data():
        yield loader.get_data()


def _as_object(content: Any) -> dict[str, Any]:
    if content is None:
        raise DocumentError("it is empty")
    if not isinstance(content, dict):
        raise DocumentError("it must hold an object, with apiVersion and kind")
    return content


def _twice(key: object) -> str:
    return f'key "{key}" already set in map'


# The loader in Python, because the one in C crashes the process on input that is nested deeply.
class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars above, noting keys that stand twice."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = _key_text(self.construct_object(key_node, deep=True))
            if key in seen:
                self.duplicates.append(_twice(key))
            seen.add(key)
        mapping = super().construct_mapping(node, deep=deep)
        return {_key_text(key): value for key, value in mapping.items()}


def _key_text(key: object) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)


for _tag, _pattern, _first in (
    ("bool", _BOOLEAN, list("yYnNtTfFoO")),
    ("int", _INTEGER, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("null", _NULL, ["~", "n", "N", ""]),
    ("merge", _MERGE, ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)


def _construct_float(loader: Any, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node))


def _construct_bool(loader: Any, node: yaml.ScalarNode) -> bool:
    return str(loader.construct_scalar(node)).lower() in ("y", "yes", "true", "on")


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
