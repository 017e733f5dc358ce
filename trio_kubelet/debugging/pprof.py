"""Samples in the form that `go tool pprof` and its like read: profile.proto, packed; pure.

Messages and fields are those of github.com/google/pprof/proto/profile.proto: Profile has
sample_type 1, sample 2, location 4, function 5, string_table 6, duration_nanos 10, period_type 11
and period 12.
"""

import gzip
from collections.abc import Iterable

from attrs import define, field
from betterproto import encode_varint

from trio_kubelet.debugging.samples import SAMPLE_SECONDS, Samples
from trio_kubelet.debugging.stacks import Line

_PERIOD_NS = round(SAMPLE_SECONDS * 1e9)


@define
class _Table:
    """Numbers for values, from a first one on, in the order in which they are asked for."""

    first: int
    numbers: dict[object, int] = field(factory=dict)

    def number(self, value: object) -> int:
        return self.numbers.setdefault(value, self.first + len(self.numbers))


def packed_profile(samples: Samples, seconds: float) -> bytes:
    """A profile of how often each stack was seen, and for how long it used the processor."""
    strings, functions, lines = _Table(0), _Table(1), _Table(1)
    strings.number("")
    parts = [
        _message(1, _value_type(strings, "samples", "count")),
        _message(1, _value_type(strings, "cpu", "nanoseconds")),
    ]
    for stack, use in samples.items():
        numbers = b"".join(encode_varint(lines.number(line)) for line in stack)
        values = encode_varint(use.samples) + encode_varint(use.nanoseconds)
        parts.append(_message(2, _message(1, numbers) + _message(2, values)))
    for line, number in lines.numbers.items():
        assert isinstance(line, Line)
        function = functions.number((line.function, line.file))
        place = _integer(1, function) + _integer(2, line.number)
        parts.append(_message(4, _integer(1, number) + _message(4, place)))
    for (name, file), number in _pairs(functions.numbers.items()):
        shown, source = strings.number(name), strings.number(file)
        parts.append(_message(5, _integer(1, number) + _integer(2, shown) + _integer(4, source)))
    period = _value_type(strings, "cpu", "nanoseconds")
    texts = [_message(6, str(text).encode(errors="replace")) for text in strings.numbers]
    rest = _integer(10, round(seconds * 1e9)) + _message(11, period) + _integer(12, _PERIOD_NS)
    return gzip.compress(b"".join((*parts, *texts)) + rest)


def _pairs(items: Iterable[tuple[object, int]]) -> Iterable[tuple[tuple[str, str], int]]:
    for key, number in items:
        assert isinstance(key, tuple)
        yield key, number


def _value_type(strings: _Table, kind: str, unit: str) -> bytes:
    return _integer(1, strings.number(kind)) + _integer(2, strings.number(unit))


def _message(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _integer(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)
