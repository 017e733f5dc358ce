"""Send anything to an agent: `python -m tests.fuzz --inputs 100000 --seed 1`."""

import argparse
import sys
import time

from tests.fuzz.run import Report, fuzz


def main() -> int:
    """Run with one seed; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="how many inputs at least")
    parser.add_argument("--seed", type=int, default=1, help="what all chance comes from")
    arguments = parser.parse_args()
    began = time.monotonic()
    report = fuzz(arguments.seed, arguments.inputs)
    _print(report, time.monotonic() - began)
    return 1 if report.findings else 0


def _print(report: Report, seconds: float) -> None:
    sources = ", ".join(f"{number} {name}" for name, number in sorted(report.inputs.items()))
    print(
        f"seed {report.seed}: {report.total} inputs ({sources}) in {seconds:.0f} s, "
        f"{report.seconds / 60:.0f} minutes of the node, {len(report.findings)} findings"
    )
    for finding in report.findings[:40]:
        print("  ", finding)


if __name__ == "__main__":
    sys.exit(main())
