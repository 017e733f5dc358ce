"""Upstream's specs of volumes by group, and the page that compares two kubelets by them."""

import re
from collections.abc import Mapping

from attrs import frozen

from lab.csi_driver import NAME
from tests.conformance.results import FAILED, PASSED, SKIPPED, Run, cell, reason


@frozen
class Group:
    """Specs of one kind of volume, by a regular expression of their names."""

    name: str
    pattern: str

    def results(self, run: Run) -> Mapping[str, str]:
        """The results of the specs of this group."""
        return {
            spec: result for spec, result in run.results.items() if re.search(self.pattern, spec)
        }


GROUPS = (
    Group("emptyDir", r"\[Driver: emptydir\]"),
    Group("emptyDir: modes and media", r"\[sig-storage\] EmptyDir "),
    Group("hostPath", r"\[Driver: hostPath(Symlink)?\]"),
    Group("hostPath: modes", r"\[sig-storage\] HostPath"),
    Group("local volumes", r"\[Driver: local\]|\[sig-storage\] PersistentVolumes-local"),
    Group("config maps", r"\[sig-storage\] ConfigMap"),
    Group("secrets", r"\[sig-storage\] Secrets"),
    Group("downward API", r"\[sig-storage\] Downward API"),
    Group("projected", r"\[sig-storage\] Projected"),
    Group("subPath of files of the API", r"\[sig-storage\] Subpath"),
    Group("CSI", rf"External Storage \[Driver: {re.escape(NAME)}\]"),
)


def storage_page(run: Run, go: Run, reasons: Mapping[str, str]) -> str:
    """The page of the documentation: of each group, how many specs passed on either kubelet.

    `reasons` say why a spec fails, by a part of its name.
    """
    here, there = run.named(FAILED), go.named(FAILED)
    return "\n".join(
        [
            "# Upstream's specs of volumes",
            "",
            "Written by `nox -s storage`, which runs the `[sig-storage]` specs of upstream's "
            "`e2e.test` for these volumes on one node, first of trio-kubelet and then of the Go "
            "kubelet. Those that are `[Serial]`, `[Slow]`, `[Disruptive]`, `[Flaky]`, of Windows "
            "or of a feature that is off by default are left out. The CSI driver is the lab's, "
            "with provisioner, attacher and resizer of kubernetes-csi; the drivers that the specs "
            "themselves start from images are not run.",
            "",
            "| | |",
            "|---|---|",
            f"| day | {run.day} |",
            f"| commit | `{run.commit}` |",
            f"| specs, control plane and Go kubelet | Kubernetes {run.kubernetes} |",
            f"| runtime | containerd {run.containerd} |",
            "",
            "A spec that skips itself asks for what the volume, the driver or the cluster does not "
            "have, such as a second node.",
            "",
            "| volumes | passed here | passed on the Go kubelet | skipped by themselves |",
            "|---|---|---|---|",
            *(_row(group, run, go) for group in GROUPS),
            "",
            "## Failed here alone",
            "",
            *_failures(here - there, reasons),
            "",
            "## Failed on the Go kubelet alone",
            "",
            *_failures(there - here, reasons),
            "",
            "## Failed on both",
            "",
            *_failures(here & there, reasons),
            "",
        ]
    )


def _row(group: Group, run: Run, go: Run) -> str:
    passed, passed_there = (_shares(group.results(each)) for each in (run, go))
    skipped = sum(result == SKIPPED for result in group.results(run).values())
    return f"| {group.name} | {passed} | {passed_there} | {skipped} |"


def _shares(results: Mapping[str, str]) -> str:
    """`12 of 13`: those that passed of those that ran; of none it is not known what would fail."""
    if not results:
        return "not run"
    ran = [result for result in results.values() if result != SKIPPED]
    return f"{ran.count(PASSED)} of {len(ran)}"


def _failures(specs: set[str], reasons: Mapping[str, str]) -> list[str]:
    if not specs:
        return ["None."]
    rows = (f"| {cell(spec)} | {reason(spec, reasons)} |" for spec in sorted(specs))
    return ["| spec | why |", "|---|---|", *rows]
