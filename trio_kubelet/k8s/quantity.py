"""Quantity: an exact amount of a resource, as the API writes it (`100m`, `1.5Gi`, `2e3`).

An amount is a whole number of billionths (nano), the finest step the API knows; what is finer is
rounded away from zero when it is read, and what is larger than a signed 64 bit number is cut to
it. Three notations exist: decimal suffixes, binary suffixes, decimal exponents. A quantity that
was read keeps its text; one that was computed is written canonically: the notation of the first
operand, the largest suffix that leaves no fraction.
"""

import re
from collections.abc import Iterable
from enum import Enum
from fractions import Fraction
from functools import lru_cache, total_ordering

NANO = 1_000_000_000
_MAX = (2**63 - 1) * NANO

_PATTERN = re.compile(
    r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_LARGEST_EXPONENT = 40
"""Beyond this many decimal digits an amount is at its limit anyway."""


class Notation(Enum):
    """Notations of a quantity."""

    DECIMAL = "decimal suffix"
    BINARY = "binary suffix"
    EXPONENT = "decimal exponent"


def _round_away(numerator: int, denominator: int) -> int:
    """Return the quotient, rounded away from zero."""
    quotient = -(-abs(numerator) // denominator)
    return quotient if numerator >= 0 else -quotient


@total_ordering
class Quantity:
    """An exact amount. Immutable; equal when the amounts are, however they are written.

    `Quantity("100m")` raises ValueError for text that is no quantity.
    """

    __slots__ = ("_nano", "_notation", "_text")

    _nano: int
    _notation: Notation
    _text: str | None

    def __init__(self, text: "str | int") -> None:
        if isinstance(text, int):
            self._nano, self._notation = _capped(text * NANO), Notation.DECIMAL
            self._text = None
            return
        self._nano, self._notation = _parse(text)
        self._text = text

    @classmethod
    def from_nano(cls, nano: int, notation: Notation = Notation.DECIMAL) -> "Quantity":
        """Make an amount of so many billionths."""
        quantity = cls.__new__(cls)
        quantity._nano = _capped(nano)
        quantity._notation = notation
        quantity._text = None
        return quantity

    @classmethod
    def from_milli(cls, milli: int) -> "Quantity":
        """Make an amount of so many thousandths, as millicores are."""
        return cls.from_nano(milli * (NANO // 1000))

    @classmethod
    def from_bytes(cls, amount: int) -> "Quantity":
        """Make a whole amount in binary notation, as memory is."""
        return cls.from_nano(amount * NANO, Notation.BINARY)

    @property
    def nano(self) -> int:
        """The amount in billionths, exactly."""
        return self._nano

    @property
    def notation(self) -> Notation:
        """Its notation."""
        return self._notation

    @property
    def value(self) -> int:
        """The amount as a whole number, rounded up (away from zero)."""
        return _round_away(self._nano, NANO)

    @property
    def milli_value(self) -> int:
        """The amount in thousandths, rounded up (away from zero)."""
        return _round_away(self._nano, NANO // 1000)

    @property
    def fraction(self) -> Fraction:
        """The amount, exactly."""
        return Fraction(self._nano, NANO)

    @property
    def canonical(self) -> str:
        """The amount as the API would write it."""
        return _canonical(self._nano, self._notation)

    def __str__(self) -> str:
        return self.canonical if self._text is None else self._text

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._nano == other._nano

    def __lt__(self, other: "Quantity") -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._nano < other._nano

    def __hash__(self) -> int:
        return hash(self._nano)

    def __bool__(self) -> bool:
        return self._nano != 0

    def __add__(self, other: "Quantity") -> "Quantity":
        if not isinstance(other, Quantity):
            return NotImplemented
        notation = self._notation if self._nano else other._notation
        return Quantity.from_nano(self._nano + other._nano, notation)

    def __sub__(self, other: "Quantity") -> "Quantity":
        if not isinstance(other, Quantity):
            return NotImplemented
        notation = self._notation if self._nano else other._notation
        return Quantity.from_nano(self._nano - other._nano, notation)

    def __neg__(self) -> "Quantity":
        return Quantity.from_nano(-self._nano, self._notation)

    @staticmethod
    def sum(quantities: "Iterable[Quantity]") -> "Quantity":
        """Add up; `0` of nothing."""
        total = Quantity(0)
        for quantity in quantities:
            total += quantity
        return total


def _capped(nano: int) -> int:
    return max(-_MAX, min(_MAX, nano))


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[int, Notation]:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(
            "must be a number with an optional suffix"
            " (n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei) or exponent"
        )
    sign, digits, suffix, exponent_text = match.groups()
    whole, _, decimals = digits.partition(".")
    number = int(whole + decimals or "0")
    if sign == "-":
        number = -number
    notation, shift, exponent = Notation.DECIMAL, 0, 9 - len(decimals)
    if exponent_text is not None:
        notation = Notation.EXPONENT
        exponent += max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, int(exponent_text)))
    elif suffix in _BINARY:
        notation, shift = Notation.BINARY, _BINARY[suffix]
    elif suffix:
        exponent += _DECIMAL[suffix]
    if exponent >= 0:
        return _capped((number << shift) * 10**exponent), notation
    return _capped(_round_away(number << shift, 10**-exponent)), notation


def _canonical(nano: int, notation: Notation) -> str:
    if nano == 0:
        return "0"
    if notation is Notation.BINARY and abs(nano) >= 1024 * NANO and nano % NANO == 0:
        return _canonical_binary(nano // NANO)
    exponent = -9
    while nano % 1000 == 0 and exponent < 18:
        nano //= 1000
        exponent += 3
    if notation is Notation.EXPONENT:
        return f"{nano}e{exponent}" if exponent else str(nano)
    return f"{nano}{_DECIMAL_SUFFIX[exponent]}"


def _canonical_binary(amount: int) -> str:
    written = str(amount)
    for suffix, shift in _BINARY.items():
        if amount % (1 << shift):
            break
        written = f"{amount >> shift}{suffix}"
    return written
