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


def parse_ns(text: str) -> int:
    """Nanoseconds since the epoch of an RFC 3339 text; ValueError if it is none."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time as RFC 3339 writes it")
    moment, fraction, zone = match.groups()
    try:
        since = datetime.fromisoformat(moment + zone).astimezone(UTC) - _EPOCH
    except OverflowError:  # the first or the last day there is, in another zone
        raise ValueError(f"{text!r} is not within the years 1 to 9999 in UTC") from None
    seconds = since.days * 86_400 + since.seconds
    return seconds * SECOND_NS + int((fraction or "0")[:9].ljust(9, "0"))


def _seconds_text(ns: int) -> str:
    moment = _EPOCH + timedelta(seconds=ns // SECOND_NS)
    return moment.replace(tzinfo=None).isoformat()


@frozen(order=True, repr=False)
class _Instant:
    """Nanoseconds since the Unix epoch, cut off to what its kind of time has room for."""

    ns: int

    @classmethod
    def from_ns(cls, ns: int) -> Self:
        """Make the instant so many nanoseconds after the Unix epoch."""
        return cls(ns)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read RFC 3339, in any zone; raises ValueError."""
        return cls(parse_ns(text))

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({str(self)!r})"


@frozen(order=True, repr=False)
class Time(_Instant):
    """An instant in whole seconds, `2026-01-31T12:00:00Z`; what is finer is cut off."""

    ns: int = field(converter=_to_seconds)

    def __str__(self) -> str:
        return _seconds_text(self.ns) + "Z"


@frozen(order=True, repr=False)
class MicroTime(_Instant):
    """An instant in microseconds, `2026-01-31T12:00:00.000000Z`; what is finer is cut off."""

    ns: int = field(converter=_to_microseconds)

    def __str__(self) -> str:
        micros = self.ns % SECOND_NS // MICROSECOND_NS
        return f"{_seconds_text(self.ns)}.{micros:06d}Z"


_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_LARGEST_DURATION_NS = 2**63 - 1


@frozen(order=True, repr=False)
class Duration:
    """A span of time in nanoseconds, written as Go writes it: `1h2m0.5s`, `100ms`, `0s`."""

    ns: int = 0

    @classmethod
    def from_seconds(cls, seconds: float) -> Self:
        """Make the span of so many seconds, rounded to nanoseconds."""
        return cls(round(seconds * SECOND_NS))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Go's notation: numbers, each with its unit; raises ValueError."""
        unsigned = text[1:] if text[:1] in ("+", "-") else text
        total, position = 0, 0
        while position < len(unsigned):
            match = _DURATION.match(unsigned, position)
            if match is None:
                break
            whole, _, decimals = match[1].partition(".")
            unit = _UNIT_NS[match[2]]
            total += int(whole or "0") * unit + int(decimals or "0") * unit // 10 ** len(decimals)
            position = match.end()
        if unsigned != "0" and (not unsigned or position < len(unsigned)):
            raise ValueError(f"{text!r} is not a duration such as 1h2m0.5s")
        if total > _LARGEST_DURATION_NS:
            raise ValueError(f"{text!r} is longer than a duration can be")
        return cls(-total if text[0] == "-" else total)

    @property
    def seconds(self) -> float:
        """The span in seconds."""
        return self.ns / SECOND_NS

    def __bool__(self) -> bool:
        return self.ns != 0

    def __str__(self) -> str:
        sign, span = ("-", -self.ns) if self.ns < 0 else ("", self.ns)
        if span == 0:
            return "0s"
        if span < SECOND_NS:
            unit = next(unit for unit in ("ms", "\u00b5s", "ns") if span >= _UNIT_NS[unit])
            return f"{sign}{_decimal(span, _UNIT_NS[unit])}{unit}"
        minutes, rest = divmod(span, 60 * SECOND_NS)
        hours, minutes = divmod(minutes, 60)
        written = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
        return f"{sign}{written}{_decimal(rest, SECOND_NS)}s"

    def __repr__(self) -> str:
        return f"Duration.parse({str(self)!r})"


def _decimal(amount: int, unit: int) -> str:
    """Return the exact decimal number of units, without trailing zeros."""
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).zfill(len(str(unit)) - 1).rstrip('0')}"
