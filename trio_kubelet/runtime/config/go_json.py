"""JSON exactly as Go's encoder writes it.

Hashes are made over such text and other kubelets read it back from annotations, so that every
byte counts: no blanks, and `<`, `>`, `&` and the two JavaScript line separators escaped.
"""

import json

_ESCAPES = str.maketrans(
    {character: f"\\u{ord(character):04x}" for character in ("<", ">", "&", "\u2028", "\u2029")}
)


def go_json(value: object) -> str:
    """The text of a value of plain dicts, lists, text, numbers and booleans; keys as ordered."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
