"""What the fuzzers' commands have in common: their options, what they print, their exit status."""

import argparse
from collections.abc import Callable, Sequence

_PRINTED = 40

Fuzzer = Callable[[int, int], tuple[str, Sequence[str]]]
"""Runs with a seed and an amount; returns how it went, in a line, and what it found."""


def run_command(fuzzer: Fuzzer, program: str, description: str | None, amount: str) -> int:
    """Run with the seed and the amount, an option of that name, that were given; 1 for findings."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument(f"--{amount}", type=int, default=10_000, help="how many at least")
    parser.add_argument("--seed", type=int, default=1, help="what all chance comes from")
    arguments = parser.parse_args()
    summary, findings = fuzzer(arguments.seed, getattr(arguments, amount))
    print(f"seed {arguments.seed}: {summary}")
    for finding in findings[:_PRINTED]:
        print("  ", finding)
    return 1 if findings else 0
