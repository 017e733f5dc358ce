"""Any JSON value, any text, any bytes; and good ones with something wrong in them."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import yaml

TEXTS = (
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800x",
        "x\udcff",
        "\U0001f600",
        "\x1b[31m",
        "\r",
        "a\r\nb",
        "\x85",
    ),
    *("/", ".", "..", "../../up", "/etc/passwd", "a/b", "~", "x" * 300, "y" * 5000, "UPPER", "a_b"),
    *(
        "$(A)",
        "$(",
        "%s%n",
        "{}",
        "<b>&",
        "'",
        '"',
        "\\",
        "null",
        "true",
        "NaN",
        "-1",
        "007",
        "0x10",
    ),
    *("1e400", "1e999999999", "-0", "9" * 5000, "100m", "1Gi", "-5Ei", ".5", "1h", "-3s", "9" * 19),
    *(
        "::1",
        "10.0.0.1",
        "256.1.1.1",
        "fe80::1%eth0",
        "http://[",
        "a:b@c/d",
        "latest",
        "img@sha256:z",
    ),
    *("2026-13-45T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "now"),
    *("Always", "Never", "ClusterFirst", "Localhost", "Unconfined", "Memory", "NoExecute", "web"),
    *("kubernetes.io/config.mirror", "kubernetes.io/config.source", "metadata.name", "default"),
)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
NUMBERS = (
    *(0, -1, 1, 7, 255, 1000, 65535, 70000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53 + 1),
    *(2**63 - 1, 2**63, -(2**63), 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, 1e-320, 1e21),
)
NOT_JSON = (float("nan"), float("inf"), float("-inf"), 10**4000)
"""What Python's parser or printer takes, and JSON does not."""
DEEPEST = 1500


class ValueGenerator:
    """Makes values by chance. Everything comes from one source of chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def text(self) -> str:
        """Any text, most of it odd."""
        if self.chance.random() < 0.7:
            return self.chance.choice(TEXTS)
        length = self.chance.choice((1, 3, 20))
        return "".join(
            chr(self.chance.choice((0x20, 0x100, 0x10000)) + self.chance.randrange(0x100))
            for _ in range(length)
        )

    def number(self) -> Any:
        """Any number."""
        if self.chance.random() < 0.05:
            return self.chance.choice(NOT_JSON)
        return self.chance.choice(NUMBERS)

    def value(self, depth: int = 3) -> Any:
        """Any JSON value."""
        kind = self.chance.randrange(9 if depth else 6)
        if kind < 2:
            return self.text()
        if kind < 4:
            return self.number()
        if kind < 6:
            return self.chance.choice((None, True, False, "", [], {}))
        size = self.chance.choice((0, 1, 1, 2, 4))
        if kind == 6:
            return [self.value(depth - 1) for _ in range(size)]
        if kind == 7:
            return {self.text(): self.value(depth - 1) for _ in range(size)}
        return self.nested()

    def nested(self) -> Any:
        """Lists or mappings, one in the other."""
        value: Any = self.chance.choice((1, "x", None))
        as_list = self.chance.random() < 0.5
        for _ in range(self.chance.choice((5, 90, 110, DEEPEST))):
            value = [value] if as_list else {"a": value}
        return value

    def data(self, longest: int = 300) -> bytes:
        """Any bytes."""
        return self.chance.randbytes(self.chance.randint(0, longest))

    def mutated(self, document: Any, most: int = 3) -> Any:
        """A copy of a document with something else at a few places."""
        copy = _copied(document)
        for _ in range(self.chance.randint(1, most)):
            places = list(_places(copy)) if isinstance(copy, dict | list) else []
            if not places:
                return self.value()
            holder, key = self.chance.choice(places)
            self._spoil(holder, key, places)
        return copy

    def _spoil(self, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
        how = self.chance.randrange(8)
        if how < 4:
            holder[key] = self.value()
        elif how == 4:
            del holder[key]
        elif how == 5 and isinstance(holder, list):
            holder.insert(key, _copied(holder[key]))
        elif how == 5:
            holder[self.text()] = holder.pop(key)
        elif how == 6:
            other, place = self.chance.choice(places)
            holder[key] = _copied(other[place])
        else:
            holder[key] = {"a": holder[key]} if self.chance.random() < 0.5 else [holder[key]]

    def spoiled_bytes(self, data: bytes) -> bytes:
        """A copy of some bytes with others at a few places."""
        spoiled = bytearray(data)
        for _ in range(self.chance.randint(1, 4)):
            place = self.chance.randint(0, len(spoiled))
            spoiled[place : place + self.chance.choice((0, 0, 1, 1, 20))] = self.chance.choice(
                (
                    b"",
                    self.data(3),
                    b"\0",
                    b"\r",
                    b"\xff",
                    b"{",
                    b"]",
                    b": ",
                    b"&a *a",
                    b"---\n",
                    b"<<",
                )
            )
        return bytes(spoiled)


def _copied(value: Any) -> Any:
    try:
        return deepcopy(value)
    except RecursionError:
        return "too deep to be copied"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where in a document a value stands: what holds it, and its key or index there."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def as_json(value: Any) -> bytes:
    """JSON, or what looks like it: NaN, giant numbers and lone surrogates included."""
    try:
        return _Endless().encode(value).encode(errors="surrogatepass")
    except RecursionError:
        return b'{"a":' * DEEPEST


class _Endless(json.JSONEncoder):
    """Writes lone surrogates as escapes, and nesting as deep as the interpreter lets it."""

    def __init__(self) -> None:
        super().__init__(ensure_ascii=True, check_circular=False)


def as_yaml(value: Any) -> bytes:
    """YAML, or JSON where there is no YAML for it."""
    try:
        text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True)
        return text.encode(errors="surrogateescape")
    except (RecursionError, yaml.YAMLError, ValueError):
        return as_json(value)
