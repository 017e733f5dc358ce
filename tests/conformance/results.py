"""What came of each spec, read from ginkgo's report, and the page that says so."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# ginkgo's labels of a spec, at the end of its name.
LABELS = re.compile(r" \[[^\[\]]*\]$")
SPEC = "[It] "


@frozen
class Run:
    """One run on one node."""

    kubelet: str
    day: str
    commit: str
    kubernetes: str
    containerd: str
    results: Mapping[str, str]
    seconds: float

    def count(self, result: str) -> int:
        """How many specs ended so."""
        return len(self.named(result))

    def named(self, result: str) -> set[str]:
        """The specs that ended so."""
        return {name for name, each in self.results.items() if each == result}


def read_report(report: Path) -> dict[str, str]:
    """The result of each spec that was run or skipped at run time, by its name.

    Specs that the focus left out are not in it, nor what ginkgo does around specs.
    """
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "")
        skipped = case.find("skipped")
        if not name.startswith(SPEC) or (skipped is not None and _was_left_out(skipped)):
            continue
        passed = PASSED if case.get("status") == PASSED else FAILED
        found[_short(name)] = passed if skipped is None else SKIPPED
    return found


def page(run: Run, reasons: Mapping[str, str]) -> str:
    """The page of the documentation; `reasons` say why a spec fails, by a part of its name."""
    failed, skipped, passed = (sorted(run.named(each)) for each in (FAILED, SKIPPED, PASSED))
    lines = [
        "# Node conformance",
        "",
        "Written by `nox -s conformance`, which builds upstream's `e2e.test` and ginkgo, makes the "
        "images that the specs pull, and runs the specs with `[NodeConformance]` that are not "
        "`[Serial]`, `[Slow]`, `[Disruptive]`, `[Flaky]` or of Windows on one node.",
        "",
        "| | |",
        "|---|---|",
        f"| kubelet | {run.kubelet} |",
        f"| day | {run.day} |",
        f"| commit | `{run.commit}` |",
        f"| specs and control plane | Kubernetes {run.kubernetes} |",
        f"| runtime | containerd {run.containerd} |",
        f"| passed | {len(passed)} |",
        f"| failed | {len(failed)} |",
        f"| skipped by themselves | {len(skipped)} |",
        "",
        "## Failed",
        "",
        "| spec | why |",
        "|---|---|",
        *(f"| {cell(name)} | {reason(name, reasons)} |" for name in failed),
        "",
        "## Skipped by themselves",
        "",
        *(f"- {name}" for name in skipped),
        "",
        "## Passed",
        "",
        *(f"- {name}" for name in passed),
        "",
    ]
    return "\n".join(lines)


def _was_left_out(skipped: ElementTree.Element) -> bool:
    """Whether the focus left the spec out; one that skips itself says why after a dash."""
    return not skipped.get("message", "").startswith(f"{SKIPPED} - ")


def _short(name: str) -> str:
    return LABELS.sub("", name.removeprefix(SPEC))


def cell(name: str) -> str:
    """The name of a spec as it stands in a table."""
    return name.replace("|", "\\|")


def reason(name: str, reasons: Mapping[str, str]) -> str:
    """Why a spec fails; `reasons` are by a part of its name."""
    return next((why for part, why in reasons.items() if part in name), "not looked into")
