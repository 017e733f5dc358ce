"""The page about conformance says what ginkgo's report says."""

from pathlib import Path

from lab.control_plane_programs import MODULES, NEWEST, SOURCE
from lab.go_programs import pinned_version
from tests.conformance.programs import MODULE
from tests.conformance.results import Run, page, read_report

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="e2e">
  <testcase name="[SynchronizedBeforeSuite]" status="passed"/>
  <testcase name="[It] [sig-node] Pods should run [NodeConformance] [sig-node, NodeConformance]"
    status="passed"/>
  <testcase name="[It] [sig-node] Pods should a|b [sig-node]" status="failed">
    <failure message="no"/></testcase>
  <testcase name="[It] [sig-node] Pods should hang [sig-node]" status="timedout"/>
  <testcase name="[It] [sig-node] Pods need two nodes [sig-node]" status="skipped">
    <skipped message="skipped - needs two nodes"/></testcase>
  <testcase name="[It] [sig-storage] another [sig-storage]" status="skipped">
    <skipped message="skipped"/></testcase>
</testsuite></testsuites>
"""


def read(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "report.xml").write_text(REPORT)
    return read_report(tmp_path / "report.xml")


def test_each_spec_has_its_result_and_what_the_focus_left_out_is_not_there(tmp_path: Path) -> None:
    assert read(tmp_path) == {
        "[sig-node] Pods should run [NodeConformance]": "passed",
        "[sig-node] Pods should a|b": "failed",
        "[sig-node] Pods should hang": "failed",
        "[sig-node] Pods need two nodes": "skipped",
    }


def test_the_page_says_why_specs_fail_and_which_passed(tmp_path: Path) -> None:
    run = Run(
        kubelet="trio-kubelet",
        day="2026-01-02",
        commit="abc",
        kubernetes="v1.36.3",
        containerd="2.1.9",
        results=read(tmp_path),
        seconds=3.0,
    )
    lines = page(run, {"should a|b": "no such thing"}).splitlines()
    assert "| [sig-node] Pods should a\\|b | no such thing |" in lines
    assert "| [sig-node] Pods should hang | not looked into |" in lines
    assert "- [sig-node] Pods should run [NodeConformance]" in lines
    assert "| passed | 1 |" in lines
    assert "| failed | 2 |" in lines


def test_specs_and_control_plane_are_of_one_version() -> None:
    assert pinned_version(MODULE) == pinned_version(SOURCE / MODULES[NEWEST])
