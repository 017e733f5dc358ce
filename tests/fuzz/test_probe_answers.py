"""Anything may be answered to a probe: it has a result, and nothing else comes of it."""

from tests.fuzz.probe_answers import fuzz_answers

PROBES = 400


def test_whatever_a_container_answers_its_probe_has_a_result() -> None:
    report = fuzz_answers(1, PROBES)
    assert report.findings == (), f"python -m tests.fuzz.probe_answers --probes {PROBES}"
    assert report.outcomes >= {"success", "failure"}
