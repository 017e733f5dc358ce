"""Run upstream's node conformance specs: `python -m tests.conformance`, half an hour.

The node is the agent, or the Go kubelet where TRIO_KUBELET_E2E_AGENT=go, as in the e2e tests.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from lab import LabError, debian_root
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.go_programs import Programs
from lab.packages import Packages, default_cache
from lab.processes import run
from lab.registry import Registry
from tests.conformance import images, programs
from tests.conformance.reasons import REASONS
from tests.conformance.results import FAILED, Run, page, read_report
from tests.e2e.local import AGENT, LocalCluster

SUITE = "bookworm"
FOCUS = r"\[NodeConformance\]"
SKIPPED = r"\[Serial\]|\[Slow\]|\[Disruptive\]|Windows|\[Flaky\]"
DEADLINE_SECONDS = 3 * 3600
PROCESSES = 4
KUBELET = "the Go kubelet" if AGENT is GoKubelet else "trio-kubelet"


def main() -> int:
    """Exit code 0 when no spec failed, else 1; 2 when the run itself could not be made."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--focus", default=FOCUS, help="a regular expression of names of specs")
    parser.add_argument("--page", type=Path, help="write the results there, as docs/ has them")
    parser.add_argument("--logs", type=Path, help="keep what the specs and the node printed there")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            found = _run(Path(folder), options.focus, options.logs)
    except LabError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    if options.page:
        options.page.write_text(page(found, REASONS))
    for name, result in sorted(found.results.items()):
        if result == FAILED:
            print(f"FAILED {name}")
    print(f"{len(found.results)} specs, {found.count(FAILED)} failed, {found.seconds:.0f} s")
    return 1 if found.count(FAILED) else 0


def _run(folder: Path, focus: str, logs: Path | None) -> Run:
    # Of the start: what is changed later is not what ran.
    commit = run(["git", "describe", "--always", "--dirty"]).strip()
    tools = programs.find()
    made = images.all_images(_root(), tools)
    with ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(folder / "control-plane"))
        cluster = LocalCluster(folder, control_plane)
        cluster.start()
        stack.callback(cluster.stop)
        registry = stack.enter_context(Registry(cluster.containerd.folder / "registry"))
        for image in made:
            host, _, repository = image.name.partition("/")
            registry.serve_to(cluster.containerd.registries, host)
            registry.push(image, repository)
        began = time.monotonic()
        report = _run_specs(tools, control_plane, folder, focus)
        seconds = time.monotonic() - began
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            for kept in (folder / "specs.log", report, cluster.agent.log):
                shutil.copy(kept, logs)
        return Run(
            kubelet=KUBELET,
            day=datetime.now(UTC).date().isoformat(),
            commit=commit,
            kubernetes=tools.version,
            containerd=cluster.containerd.tools.version,
            results=read_report(report),
            seconds=seconds,
        )


def _root() -> Path:
    """The root folder with the packages of the images, made once."""
    root = default_cache() / "conformance" / f"root-{SUITE}-{'-'.join(images.PACKAGES)}"
    if not root.exists():
        partial = root.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        debian_root.make(partial, SUITE, images.PACKAGES, Packages())
        partial.rename(root)
    return root


def _run_specs(tools: Programs, control_plane: ControlPlane, folder: Path, focus: str) -> Path:
    """Run the specs and return ginkgo's report; that some fail is no error here."""
    report = folder / "report.xml"
    ginkgo: list[str | Path] = [tools[programs.GINKGO], f"--focus={focus}", f"--skip={SKIPPED}"]
    ginkgo += [f"--procs={PROCESSES}", "--no-color", f"--timeout={DEADLINE_SECONDS}s"]
    ginkgo += [f"--output-dir={folder}", f"--junit-report={report.name}"]
    specs = [f"--kubeconfig={control_plane.folder / 'admin.conf'}", "--provider=skeleton"]
    specs += ["--num-nodes=1", "--allowed-not-ready-nodes=0", "--dump-logs-on-failure=false"]
    words: list[str | Path] = [*ginkgo, tools[programs.SPECS], "--", *specs]
    with (folder / "specs.log").open("wb") as log:
        subprocess.run(words, cwd=folder, stdout=log, stderr=log, check=False)
    if not report.exists():
        raise LabError(f"the specs did not run: {(folder / 'specs.log').read_text()[-2000:]}")
    return report


if __name__ == "__main__":
    sys.exit(main())
