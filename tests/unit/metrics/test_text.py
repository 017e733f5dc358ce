"""The text format, read back with Prometheus's own parser."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from trio_kubelet.metrics.text import (
    Family,
    accepts_gzip,
    exposition,
    families_of,
    label_text,
    number_text,
)


def test_names_and_types_of_counters_are_as_they_are_given() -> None:
    registry = CollectorRegistry()
    Counter("work", "Work done.", ["kind"], registry=registry).labels("hard").inc(3)
    Gauge("dropped_count", "What was dropped.", registry=registry).set(2)
    Histogram("seconds", "How long.", registry=registry, buckets=(1, 2)).observe(1.5)
    text = exposition(families_of(registry.collect(), {"dropped_count": "counter"})).decode()
    assert "# TYPE work_total counter\n" in text
    assert 'work_total{kind="hard"} 3.0\n' in text
    assert "# TYPE dropped_count counter\ndropped_count 2.0\n" in text
    assert 'seconds_bucket{le="+Inf"} 1.0\n' in text
    assert "_created" not in text


def test_what_has_no_sample_is_left_out() -> None:
    assert exposition([Family("a", "gauge", "A.")]) == b""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3, "3"),
        (0.25, "0.25"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (1e300, "1e+300"),
    ],
)
def test_numbers(number: float, text: str) -> None:
    assert number_text(number) == text


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r")))
def test_any_label_is_read_back(value: str) -> None:
    family = Family("a", "gauge", "A \\ and\nmore.")
    family.add(label_text({"x": value}), 1, 1_700_000_000_123)
    # Lines end with a newline and nothing else, as in Go; the parser of the library is the judge.
    [found] = text_string_to_metric_families(exposition([family]).decode())
    [sample] = found.samples
    assert sample.labels == {"x": value}


def test_a_label_that_is_no_unicode_can_be_sent() -> None:
    family = Family("a", "gauge", "A.")
    family.add(label_text({"x": "\ud800"}), 1)
    assert exposition([family]).endswith(b'a{x="?"} 1\n')


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, GZIP;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("identity", False),
        ("*", True),
    ],
)
def test_who_takes_gzip(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts
