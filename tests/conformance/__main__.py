"""Run upstream's node conformance specs: `python -m tests.conformance`, half an hour.

The node is the agent, or the Go kubelet where TRIO_KUBELET_E2E_AGENT=go, as in the e2e tests.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from lab import LabError
from tests.conformance.reasons import REASONS
from tests.conformance.results import FAILED, page
from tests.conformance.suite import Selection, run_specs
from tests.e2e.local import AGENT

FOCUS = r"\[NodeConformance\]"
SKIPPED = r"\[Serial\]|\[Slow\]|\[Disruptive\]|Windows|\[Flaky\]"


def main() -> int:
    """Exit code 0 when no spec failed, else 1; 2 when the run itself could not be made."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--focus", default=FOCUS, help="a regular expression of names of specs")
    parser.add_argument("--page", type=Path, help="write the results there, as docs/ has them")
    parser.add_argument("--logs", type=Path, help="keep what the specs and the node printed there")
    options = parser.parse_args()
    selection = Selection(options.focus, SKIPPED)
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            found = run_specs(AGENT, selection, Path(folder), logs=options.logs)
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


if __name__ == "__main__":
    sys.exit(main())
