"""Several runs of the benchmarks as one table: a goal is met if the median of the runs meets it.

One run says little on a machine whose host does other things, too:

    python -m benchmarks cluster --json run-1.json        # three times
    python -m benchmarks.runs run-1.json run-2.json run-3.json

The table is Markdown, for docs/benchmarks.md.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Json, number

LEAST_RUNS = 3
"""Fewer say nothing of whether a goal is met."""


def runs_table(runs: Sequence[Iterable[Json]]) -> str:
    """The figures of some runs, as `Figure.as_json` has them, one a line.

    A figure that is not in every run has no median and no verdict.
    """
    by_run = [{(str(f["benchmark"]), str(f["name"])): f for f in run} for run in runs]
    keys = dict.fromkeys(key for run in by_run for key in run)
    headings = (
        "benchmark",
        "figure",
        *(f"run {position}" for position in range(1, len(runs) + 1)),
        "median",
        "goal",
        "",
    )
    rows = [_row(key, [run.get(key) for run in by_run]) for key in keys]
    return "\n".join(_line(cells) for cells in (headings, ["---"] * len(headings), *rows))


def _row(key: tuple[str, str], figures: Sequence[Json | None]) -> Sequence[str]:
    benchmark, name = key
    present = [figure for figure in figures if figure is not None]
    unit, goal = present[-1]["unit"], present[-1]["goal"]
    values = [_value(figure) for figure in present]
    is_whole = len(present) == len(figures) >= LEAST_RUNS
    median = statistics.median(values)
    verdict = ""
    if is_whole and goal is not None:
        verdict = "met" if median <= float(str(goal)) else "**not met**"
    return (
        f"`{benchmark}`",
        name,
        *(f"{number(_value(f))} {unit}" if f is not None else "" for f in figures),
        f"{number(median)} {unit}" if is_whole else "",
        f"{number(float(str(goal)))} {unit}" if goal is not None else "",
        verdict,
    )


def _value(figure: Mapping[str, object]) -> float:
    return float(str(figure["value"]))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    """Print the table of the reports with these names; 1 without any."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 1
    print(runs_table([json.loads(Path(each).read_text())["figures"] for each in arguments]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
