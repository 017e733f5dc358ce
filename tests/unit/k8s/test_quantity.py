"""Quantities by table."""

import pytest

from trio_kubelet.k8s import Quantity
from trio_kubelet.k8s.quantity import Notation


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Ki", "0"),
        ("-0.0", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("01.50", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1000k", "1M"),
        ("100u", "100u"),
        ("1000000n", "1m"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1023Ki", "1023Ki"),
        ("0.001Ki", "1024m"),
        ("1.0001Ki", "1024102400u"),
        ("-2Gi", "-2Gi"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1500e0", "1500"),
        ("12e4", "120e3"),
        ("1e-3", "1e-3"),
        ("0.5e1", "5"),
        ("8Ei", "9223372036854775807"),
        ("1e100", "9223372036854775807"),
        ("-9999999999999999999", "-9223372036854775807"),
        ("1e-100", "1e-9"),
        ("4E", "4E"),
    ],
)
def test_the_canonical_text(text: str, canonical: str) -> None:
    assert Quantity(text).canonical == canonical
    assert str(Quantity(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        "m",
        ".",
        "1.2.3",
        "1mi",
        "1K",
        "1KI",
        "1ki",
        "1e",
        "1e1.5",
        "--1",
        "1e3k",
        "٣",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number with an optional suffix"):
        Quantity(text)


@pytest.mark.parametrize(
    ("text", "value", "milli"),
    [
        ("100m", 1, 100),
        ("1001m", 2, 1001),
        ("1.5", 2, 1500),
        ("100u", 1, 1),
        ("1Gi", 1073741824, 1073741824000),
        ("-100m", -1, -100),
        ("0", 0, 0),
    ],
)
def test_values_are_rounded_up(text: str, value: int, milli: int) -> None:
    assert (Quantity(text).value, Quantity(text).milli_value) == (value, milli)


def test_equal_amounts_are_equal_however_they_are_written() -> None:
    assert Quantity("1") == Quantity("1000m") == Quantity(1) == Quantity("1e0")
    assert len({Quantity("1Ki"), Quantity("1024"), Quantity("1.024e3")}) == 1
    assert Quantity("1") != 1


@pytest.mark.parametrize(
    ("one", "other", "total", "difference"),
    [
        ("1Gi", "512Mi", "1536Mi", "512Mi"),
        ("1Gi", "1G", "2073741824", "73741824"),
        ("100m", "0.9", "1", "-800m"),
        ("0", "1Mi", "1Mi", "-1Mi"),
        ("1e3", "1", "1001", "999"),
    ],
)
def test_arithmetic_keeps_the_notation(one: str, other: str, total: str, difference: str) -> None:
    assert str(Quantity(one) + Quantity(other)) == total
    assert str(Quantity(one) - Quantity(other)) == difference


def test_sums_and_order() -> None:
    amounts = [Quantity("300m"), Quantity("1"), Quantity("200m")]
    assert str(Quantity.sum(amounts)) == "1500m"
    assert [str(amount) for amount in sorted(amounts)] == ["200m", "300m", "1"]
    assert str(max(amounts)) == "1"
    assert Quantity.sum([]) == Quantity(0)
    assert not Quantity("0Gi")


def test_quantities_are_made_of_numbers() -> None:
    assert str(Quantity.from_milli(1500)) == "1500m"
    assert str(Quantity.from_bytes(3 << 30)) == "3Gi"
    assert str(Quantity.from_nano(1)) == "1n"
    assert Quantity.from_bytes(1).notation is Notation.BINARY


def test_other_types_do_not_mix_with_quantities() -> None:
    with pytest.raises(TypeError):
        _ = Quantity("1") + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        _ = Quantity("1") < 1  # type: ignore[operator]
