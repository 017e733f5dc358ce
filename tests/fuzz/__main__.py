"""Send anything to an agent: `python -m tests.fuzz --inputs 100000 --seed 1`."""

import sys
import time
from collections.abc import Sequence

from tests.fuzz.command import run_command
from tests.fuzz.run import fuzz


def _command(seed: int, inputs: int) -> tuple[str, Sequence[str]]:
    began = time.monotonic()
    report = fuzz(seed, inputs)
    sources = ", ".join(f"{number} {name}" for name, number in sorted(report.inputs.items()))
    summary = (
        f"{report.total} inputs ({sources}) in {time.monotonic() - began:.0f} s, "
        f"{report.seconds / 60:.0f} minutes of the node, {len(report.findings)} findings"
    )
    return summary, report.findings


if __name__ == "__main__":
    sys.exit(run_command(_command, "tests.fuzz", __doc__, "inputs"))
