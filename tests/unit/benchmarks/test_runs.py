"""Three runs as one table: what is met, the median says."""

import json
from pathlib import Path

import pytest

from benchmarks.figures import Figure, Json
from benchmarks.runs import main, runs_table


def run(value: float, *, goal: float | None = 1.0, name: str = "all gone") -> list[Json]:
    return [Figure(benchmark="cluster", name=name, value=value, unit="x", goal=goal).as_json]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.9, 1.2, 1.0), "0.90 x | 1.20 x | 1.00 x | 1.00 x | 1.00 x | met |"),
        ((0.9, 1.2, 1.1), "0.90 x | 1.20 x | 1.10 x | 1.10 x | 1.00 x | **not met** |"),
        ((0.9, 0.9), "0.90 x | 0.90 x |  | 1.00 x |  |"),
        ((0.9,), "0.90 x |  | 1.00 x |  |"),
    ],
)
def test_a_goal_is_met_if_the_median_of_three_runs_meets_it(
    values: tuple[float, ...], shown: str
) -> None:
    last = runs_table([run(value) for value in values]).splitlines()[-1]
    assert last == f"| `cluster` | all gone | {shown}"


def test_what_has_no_goal_has_no_verdict() -> None:
    last = runs_table([run(2.0, goal=None)] * 3).splitlines()[-1]
    assert last.endswith("| 2.00 x |  |  |")


def test_a_figure_that_one_run_lacks_has_no_verdict() -> None:
    runs = [run(0.9), run(0.9), run(0.9, name="all Ready")]
    gone, ready = runs_table(runs).splitlines()[2:]
    assert gone.endswith("| 0.90 x | 0.90 x |  |  | 1.00 x |  |")
    assert ready.endswith("|  |  | 0.90 x |  | 1.00 x |  |")


def test_the_reports_of_the_benchmarks_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "run.json"
    report.write_text(json.dumps({"machine": "2 cores", "figures": run(0.9)}))
    assert main([str(report)] * 3) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("| met |")
