"""The page about specs of volumes compares the agent with the Go kubelet."""

from collections.abc import Mapping

from attrs import evolve

from tests.conformance.results import Run
from tests.conformance.storage_page import GROUPS, storage_page

SPECS = (
    "[sig-storage] In-tree Volumes [Driver: emptydir] [Testpattern: Inline-volume] should mount",
    "[sig-storage] EmptyDir volumes should be there",
    "[sig-storage] EmptyDir volumes should have two nodes",
    "[sig-storage] In-tree Volumes [Driver: hostPathSymlink] [Testpattern: x] should a|b",
)


def run(*results: str) -> Run:
    return Run(
        kubelet="either",
        day="2026-01-02",
        commit="abc",
        kubernetes="v1.36.3",
        containerd="2.1.9",
        results=dict(zip(SPECS, results, strict=True)),
        seconds=3.0,
    )


def lines(here: Run, there: Run, reasons: Mapping[str, str] = {}) -> list[str]:
    return storage_page(here, there, reasons).splitlines()


def test_each_group_says_how_many_specs_passed_on_either_kubelet() -> None:
    here = run("passed", "failed", "skipped", "passed")
    there = run("passed", "passed", "skipped", "failed")
    found = lines(here, there)
    assert "| emptyDir: modes and media | 0 of 1 | 1 of 1 | 1 |" in found
    assert "| hostPath | 1 of 1 | 0 of 1 | 0 |" in found


def test_a_group_of_which_nothing_was_run_says_so() -> None:
    here = run("passed", "passed", "passed", "passed")
    there = evolve(here, results={SPECS[0]: "passed"})
    found = lines(here, there)
    assert "| CSI | not run | not run | 0 |" in found
    assert "| hostPath | 1 of 1 | not run | 0 |" in found


def test_a_spec_that_fails_stands_below_the_kubelets_that_fail_it_with_the_reason() -> None:
    here = run("passed", "failed", "skipped", "failed")
    there = run("failed", "passed", "skipped", "failed")
    found = lines(here, there, {"a|b": "no mount tool", "be there": "a bug"})
    alone, go_alone, both = (
        found.index(f"## Failed {where}")
        for where in ("here alone", "on the Go kubelet alone", "on both")
    )
    assert alone < found.index(f"| {SPECS[1]} | a bug |") < go_alone
    assert go_alone < found.index(f"| {SPECS[0]} | not looked into |") < both
    hidden = SPECS[3].replace("|", "\\|")
    assert found.index(f"| {hidden} | no mount tool |") > both


def test_no_spec_is_in_two_groups() -> None:
    passed = run("passed", "passed", "passed", "passed")
    assert [sum(spec in group.results(passed) for group in GROUPS) for spec in SPECS] == [1] * 4
