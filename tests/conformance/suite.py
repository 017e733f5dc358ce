"""Upstream's specs on one node: control plane, registry of images, ginkgo.

Programs are built with Go for minutes, once; images are made of them and of packages.
"""

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen

from lab import LabError, debian_root
from lab.agent import LabAgent
from lab.control_plane import ControlPlane
from lab.go_kubelet import GoKubelet
from lab.go_programs import Programs
from lab.packages import Packages, default_cache
from lab.processes import run
from lab.registry import Registry
from tests.conformance import images, programs
from tests.conformance.results import Run, read_report
from tests.e2e.local import LocalCluster

SUITE = "bookworm"
DEADLINE_SECONDS = 3 * 3600
PROCESSES = 4


@frozen
class Selection:
    """Regular expressions of names of specs: those that run, and of them those that do not."""

    focus: str
    skip: str


Beside = Callable[[LocalCluster, Path], AbstractContextManager[tuple[str, ...]]]
"""Runs what specs need beside a node, with its files in a folder; yields flags for e2e.test."""


def nothing(_: LocalCluster, __: Path) -> AbstractContextManager[tuple[str, ...]]:
    """Run nothing beside the node."""
    return nullcontext(())


def run_specs(
    kind: type[LabAgent],
    selection: Selection,
    folder: Path,
    *,
    beside: Beside = nothing,
    logs: Path | None = None,
) -> Run:
    """Run specs on a node of an agent of this kind, with all files in `folder`.

    What specs and node have printed is kept in `logs`. LabError if they cannot be run; that some
    fail is none.
    """
    # Of the start: what is changed later is not what ran.
    commit = run(["git", "describe", "--always", "--dirty"]).strip()
    tools = programs.find()
    made = images.all_images(_root(), tools)
    with ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(folder / "control-plane"))
        cluster = LocalCluster(folder, control_plane, kind)
        cluster.start()
        stack.callback(cluster.stop)
        registry = stack.enter_context(Registry(cluster.containerd.folder / "registry"))
        for image in made:
            host, _, repository = image.name.partition("/")
            registry.serve_to(cluster.containerd.registries, host)
            registry.push(image, repository)
        flags = stack.enter_context(beside(cluster, folder / "beside"))
        began = time.monotonic()
        flags += (f"--kubelet-root-dir={cluster.agent.root}",)
        report = _run_ginkgo(tools, control_plane, folder, selection, flags)
        seconds = time.monotonic() - began
        cluster.delete_all_pods()
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
            for kept in (folder / "specs.log", report, cluster.agent.log):
                shutil.copy(kept, logs)
        return Run(
            kubelet="the Go kubelet" if kind is GoKubelet else "trio-kubelet",
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


def _run_ginkgo(
    tools: Programs,
    control_plane: ControlPlane,
    folder: Path,
    selection: Selection,
    flags: tuple[str, ...],
) -> Path:
    """Run the specs and return ginkgo's report."""
    report = folder / "report.xml"
    ginkgo: list[str | Path] = [tools[programs.GINKGO], f"--focus={selection.focus}"]
    ginkgo += [f"--skip={selection.skip}", f"--procs={PROCESSES}", "--no-color"]
    ginkgo += [f"--timeout={DEADLINE_SECONDS}s"]
    ginkgo += [f"--output-dir={folder}", f"--junit-report={report.name}"]
    specs = [f"--kubeconfig={control_plane.folder / 'admin.conf'}", "--provider=skeleton"]
    specs += ["--num-nodes=1", "--allowed-not-ready-nodes=0", "--dump-logs-on-failure=false"]
    words: list[str | Path] = [*ginkgo, tools[programs.SPECS], "--", *specs, *flags]
    with (folder / "specs.log").open("wb") as log:
        subprocess.run(words, cwd=folder, stdout=log, stderr=log, check=False)
    if not report.exists():
        raise LabError(f"the specs did not run: {(folder / 'specs.log').read_text()[-2000:]}")
    return report
