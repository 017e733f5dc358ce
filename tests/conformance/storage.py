"""Run upstream's specs of volumes: `python -m tests.conformance.storage`, an hour or two.

They run on the agent, and then on the Go kubelet in the same lab.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from lab import LabError
from lab.agent import LabAgent
from lab.go_kubelet import GoKubelet
from tests.conformance.results import FAILED, Run
from tests.conformance.storage_driver import csi_driver
from tests.conformance.storage_page import GROUPS, storage_page
from tests.conformance.storage_reasons import REASONS
from tests.conformance.suite import Selection, run_specs

FOCUS = "|".join(group.pattern for group in GROUPS)
SKIPPED = r"\[Serial\]|\[Slow\]|\[Disruptive\]|Windows|\[Flaky\]|\[Feature:OffByDefault\]"
KUBELETS: dict[str, type[LabAgent]] = {"trio-kubelet": LabAgent, "go": GoKubelet}


def main() -> int:
    """Exit code 0 when no spec failed on the agent that the Go kubelet passes, else 1.

    2 when the run itself could not be made.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.storage", description=__doc__
    )
    parser.add_argument("--focus", default=FOCUS, help="a regular expression of names of specs")
    parser.add_argument("--page", type=Path, help="write the results there, as docs/ has them")
    parser.add_argument("--logs", type=Path, help="keep what specs and nodes printed there")
    options = parser.parse_args()
    selection = Selection(options.focus, SKIPPED)
    try:
        run, go = (
            _run(name, kind, selection, options.logs and options.logs / name)
            for name, kind in KUBELETS.items()
        )
    except LabError as error:
        print(f"storage: {error}", file=sys.stderr)
        return 2
    if options.page:
        options.page.write_text(storage_page(run, go, REASONS))
    return 1 if run.named(FAILED) - go.named(FAILED) else 0


def _run(name: str, kind: type[LabAgent], selection: Selection, logs: Path | None) -> Run:
    with tempfile.TemporaryDirectory(prefix=f"storage-{name}-") as folder:
        run = run_specs(kind, selection, Path(folder), beside=csi_driver, logs=logs)
    for spec in sorted(run.named(FAILED)):
        print(f"FAILED {spec}")
    failed, seconds = run.count(FAILED), run.seconds
    print(f"{name}: {len(run.results)} specs, {failed} failed, {seconds:.0f} s", flush=True)
    return run


if __name__ == "__main__":
    sys.exit(main())
