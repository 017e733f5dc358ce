"""Live through single days: `python -m tests.simulation SEED...`, or `FIRST-LAST`."""

import argparse
import os
import sys
import time

from tests.simulation.day import Report, simulate
from tests.simulation.determinism import HASH_SEED
from tests.simulation.world import ROUNDS


def main() -> int:
    """Run the days of the given seeds; 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="+", help="a seed, or a range of them: 1-20")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how long a day is")
    parser.add_argument("--story", action="store_true", help="print all that happened")
    arguments = parser.parse_args()
    bad = 0
    for seed in (seed for text in arguments.seeds for seed in _seeds(text)):
        began = time.process_time()
        report = simulate(seed, rounds=arguments.rounds)
        bad += bool(report.violations)
        _print(report, time.process_time() - began, story=arguments.story)
    return 1 if bad else 0


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _print(report: Report, cpu_seconds: float, *, story: bool) -> None:
    if story:
        print("\n".join(report.story))
    hours = report.seconds / 3600
    print(
        f"seed {report.seed}: {hours:.1f} h in {cpu_seconds:.1f} s, {len(report.story)} lines, "
        f"{report.digest[:16]}, {len(report.violations)} violations"
    )
    for violation in report.violations[:10]:
        print("  ", violation)


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:
        arguments = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": HASH_SEED})
    sys.exit(main())
