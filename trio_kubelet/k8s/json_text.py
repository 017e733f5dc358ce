"""JSON from others and to others: text that is no valid Unicode is nobody's end.

orjson refuses such text, in either direction, and with it the whole document.
"""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from trio_kubelet.foreign_text import spelled_out


def loads(body: bytes) -> Any:
    """Parse JSON; raises ValueError.

    What is not valid Unicode becomes text with lone surrogates, which the codec refuses: so one
    object with such text does not make a whole list unreadable.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"\\u" not in body and _is_utf8(body):
            raise
        try:
            return json.loads(body.decode(errors="surrogateescape"), parse_constant=_no_constant)
        except RecursionError:
            raise error from None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def dumps(data: object) -> bytes:
    """Write JSON; lone surrogates in its text are spelled out."""
    try:
        return orjson.dumps(data)
    except TypeError:
        return orjson.dumps(_spelled_out(data))


def _spelled_out(data: object) -> object:
    if isinstance(data, str):
        return spelled_out(data)
    if isinstance(data, Mapping):
        return {_spelled_out(name): _spelled_out(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_spelled_out(value) for value in data]
    return data


_ESCAPES = str.maketrans(
    {character: f"\\u{ord(character):04x}" for character in ("<", ">", "&", "\u2028", "\u2029")}
)


def go_json(value: object) -> str:
    """The JSON text of plain values exactly as Go's encoder writes it; keys as ordered.

    Hashes are made over it and other kubelets read it back from annotations, so every byte counts:
    no blanks, and `<`, `>`, `&` and the two JavaScript line separators escaped.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
