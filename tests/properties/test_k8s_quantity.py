"""Quantities against exact fractions."""

import re
from fractions import Fraction
from math import ceil

from hypothesis import assume, given

from tests.properties.k8s_strategies import quantities, quantity_texts
from trio_kubelet.k8s import Quantity
from trio_kubelet.k8s.quantity import Notation

LIMIT = 2**63 - 1
NANO = Fraction(1, 10**9)
DECIMAL = dict(zip(["n", "u", "m", "", *"kMGTPE"], range(-9, 19, 3), strict=True))


def model(text: str) -> Fraction:
    """The amount that a text stands for, before it is made to fit."""
    match = re.fullmatch(r"([+-]?)(\d*\.?\d*)(.*)", text)
    assert match is not None
    sign, digits, suffix = match.groups()
    amount = Fraction(f"0{digits}0" if digits.endswith(".") else f"0{digits}")
    if suffix.endswith("i"):
        amount *= 2 ** (10 * (1 + "KMGTPE".index(suffix[0])))
    elif suffix in DECIMAL:
        amount *= Fraction(10) ** DECIMAL[suffix]
    else:
        amount *= Fraction(10) ** int(suffix[1:])
    return -amount if sign == "-" else amount


@given(quantity_texts)
def test_an_amount_is_exact_to_a_billionth_and_rounded_away_from_zero(text: str) -> None:
    amount, exact = Quantity(text).fraction, model(text)
    if abs(exact) >= LIMIT:
        assert abs(amount) == LIMIT
    else:
        assert 0 <= abs(amount) - abs(exact) < NANO
        assert amount * exact >= 0


@given(quantity_texts)
def test_text_is_kept_as_it_was_read(text: str) -> None:
    assert str(Quantity(text)) == text


@given(quantities)
def test_the_canonical_text_is_the_same_amount_and_canonical_already(quantity: Quantity) -> None:
    again = Quantity(quantity.canonical)
    assert again == quantity
    assert again.canonical == quantity.canonical


@given(quantities)
def test_the_canonical_text_has_no_fraction_and_no_larger_suffix_fits(quantity: Quantity) -> None:
    match = re.fullmatch(r"-?(\d+)([numkMGTPE]?|[KMGTPE]i|e-?\d+)", quantity.canonical)
    assert match is not None
    number, suffix = int(match[1]), match[2]
    assume(number)
    step = 1024 if suffix.endswith("i") else 1000
    assert number % step or suffix in ("E", "Ei", "e18")


@given(quantities)
def test_whole_and_milli_values_are_rounded_away_from_zero(quantity: Quantity) -> None:
    size = abs(quantity.fraction)
    assert abs(quantity.value) == ceil(size)
    assert abs(quantity.milli_value) == ceil(size * 1000)


@given(quantities, quantities)
def test_arithmetic_and_order_are_those_of_fractions(one: Quantity, other: Quantity) -> None:
    total, difference = one.fraction + other.fraction, one.fraction - other.fraction
    assert (one + other).fraction == max(-LIMIT, min(LIMIT, total))
    assert (one - other).fraction == max(-LIMIT, min(LIMIT, difference))
    assert (one < other) == (one.fraction < other.fraction)
    assert (one == other) == (one.fraction == other.fraction)
    assert one != other or hash(one) == hash(other)


@given(quantities, quantities)
def test_a_sum_is_written_as_its_first_operand(one: Quantity, other: Quantity) -> None:
    assume(one)
    assert (one + other).notation is one.notation
    assert (Quantity(0) + other).notation in (other.notation, Notation.DECIMAL)
