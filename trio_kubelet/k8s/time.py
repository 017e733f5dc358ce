"""Instants and durations as the API writes them.

The classes hold exactly what the wire can hold: `Time` whole seconds, `MicroTime` microseconds.
So two values are equal when their texts are, and nothing is lost on the way to the API server
and back. `Duration` has Go's notation (`1h2m0.5s`) and nanoseconds.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Self

from attrs import field, frozen

SECOND_NS = 1_000_000_000
MICROSECOND_NS = 1_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _to_seconds(ns: int) -> int:
    return ns - ns % SECOND_NS


def _to_microseconds(ns: int) -> int:
    return ns - ns % MICROSECOND_NS


def _parse_ns(text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 text; ValueError if it is none."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time as RFC 3339 writes it")
    moment, fraction, zone = match.groups()
    since = datetime.fromisoformat(moment + zone) - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return seconds * SECOND_NS + int((fraction or "0")[:9].ljust(9, "0"))


def _seconds_text(ns: int) -> str:
    moment = _EPOCH + timedelta(seconds=ns // SECOND_NS)
    return moment.replace(tzinfo=None).isoformat()


@frozen(order=True, repr=False)
class Time:
    """An instant in whole seconds, `2026-01-31T12:00:00Z`; what is finer is cut off."""

    ns: int = field(converter=_to_seconds)

    @classmethod
    def from_ns(cls, ns: int) -> Self:
        """Make the instant so many nanoseconds after the Unix epoch."""
        return cls(ns)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read RFC 3339, in any zone; raises ValueError."""
        return cls(_parse_ns(text))

    def __str__(self) -> str:
        return _seconds_text(self.ns) + "Z"

    def __repr__(self) -> str:
        return f"Time.parse({str(self)!r})"


@frozen(order=True, repr=False)
class MicroTime:
    """An instant in microseconds, `2026-01-31T12:00:00.000000Z`; what is finer is cut off."""

    ns: int = field(converter=_to_microseconds)

    @classmethod
    def from_ns(cls, ns: int) -> Self:
        """Make the instant so many nanoseconds after the Unix epoch."""
        return cls(ns)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read RFC 3339, in any zone; raises ValueError."""
        return cls(_parse_ns(text))

    def __str__(self) -> str:
        micros = self.ns % SECOND_NS // MICROSECOND_NS
        return f"{_seconds_text(self.ns)}.{micros:06d}Z"

    def __repr__(self) -> str:
        return f"MicroTime.parse({str(self)!r})"
