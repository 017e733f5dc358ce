"""Times and durations by table."""

import pytest

from trio_kubelet.k8s import Duration, IntOrString, MicroTime, Time

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "written", "ns"),
    [
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", 0),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00Z", 1_769_853_600 * SECOND),
        ("2026-01-31T10:00:00.999999999Z", "2026-01-31T10:00:00Z", 1_769_853_600 * SECOND),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59Z", -SECOND),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", -62_135_596_800 * SECOND),
    ],
)
def test_a_time_is_whole_seconds_in_utc(text: str, written: str, ns: int) -> None:
    assert str(Time.parse(text)) == written
    assert Time.parse(text).ns == ns
    assert Time.from_ns(ns) == Time.parse(text)


def test_a_micro_time_has_six_digits() -> None:
    time = MicroTime.parse("2026-01-31T10:00:00.123456789Z")
    assert str(time) == "2026-01-31T10:00:00.123456Z"
    assert str(MicroTime.from_ns(1_500)) == "1970-01-01T00:00:00.000001Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-31",
        "2026-01-31 10:00:00Z",
        "2026-01-31T10:00:00",
        "2026-02-30T10:00:00Z",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Time.parse(text)


@pytest.mark.parametrize(
    ("text", "written", "ns"),
    [
        ("0", "0s", 0),
        ("0s", "0s", 0),
        ("1h2m0.5s", "1h2m0.5s", 3_720_500_000_000),
        ("60s", "1m0s", 60 * SECOND),
        ("90m", "1h30m0s", 5400 * SECOND),
        ("1.5h", "1h30m0s", 5400 * SECOND),
        ("100ms", "100ms", SECOND // 10),
        ("1500us", "1.5ms", 1_500_000),
        ("1\u00b5s", "1\u00b5s", 1_000),
        ("1\u03bcs1ns", "1.001\u00b5s", 1_001),
        ("-1.5s", "-1.5s", -3 * SECOND // 2),
        ("+2s", "2s", 2 * SECOND),
        (".5s", "500ms", SECOND // 2),
    ],
)
def test_a_duration_is_written_as_go_does(text: str, written: str, ns: int) -> None:
    assert Duration.parse(text).ns == ns
    assert str(Duration.parse(text)) == written


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1s2", "1 s", "-", "1h-2m", "10000000h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        Duration.parse(text)


def test_durations_are_compared_and_made_of_seconds() -> None:
    assert Duration.from_seconds(1.5) == Duration.parse("1500ms")
    assert Duration.parse("1s") < Duration.parse("1m")
    assert Duration.parse("1m").seconds == 60.0
    assert not Duration()


def test_a_port_is_a_number_or_a_name() -> None:
    assert (str(IntOrString(80)), str(IntOrString("http"))) == ("80", "http")
    assert IntOrString(80) != IntOrString("80")
