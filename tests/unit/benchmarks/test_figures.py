"""The table and the JSON of the benchmarks: what is met, what is not, what is only reported."""

import json

import pytest

from benchmarks.__main__ import NAMES, main
from benchmarks.figures import Figure, ratio_of_medians, spread, table

MET = Figure(benchmark="pod-start", name="first pod", value=1.42, unit="x", goal=1.6, how="why")
MISSED = Figure(benchmark="idle", name="memory", value=131.4, unit="MiB", goal=110.0)
REPORTED = Figure(benchmark="pod-start", name="second pod", value=1.1, unit="x")


def test_a_value_at_its_goal_meets_it() -> None:
    assert Figure(benchmark="b", name="n", value=1.6, unit="x", goal=1.6).met
    assert MET.met
    assert not MISSED.met
    assert REPORTED.met is None


def test_the_table_shows_goal_and_verdict_in_columns() -> None:
    lines = table([MET, MISSED, REPORTED]).splitlines()

    assert [line.split()[0] for line in lines] == ["benchmark", "pod-start", "idle", "pod-start"]
    assert lines[1].endswith("1.42 x    ≤ 1.60 x   met      why")
    assert lines[2].endswith("131 MiB   ≤ 110 MiB  NOT MET")
    assert lines[3].endswith("1.10 x")
    assert len({line.index(text) for line, text in zip(lines[1:3], "≤≤", strict=True)}) == 1


def test_figures_survive_json() -> None:
    read = json.loads(json.dumps([figure.as_json for figure in (MET, REPORTED)]))

    assert read[0] == {
        "benchmark": "pod-start",
        "name": "first pod",
        "value": 1.42,
        "unit": "x",
        "goal": 1.6,
        "met": True,
        "how": "why",
    }
    assert read[1]["met"] is None


def test_a_ratio_is_that_of_the_medians() -> None:
    assert ratio_of_medians([3.0, 100.0, 2.0], [2.0, 1.0, 50.0]) == 1.5
    assert spread([0.2, 0.1, 0.4]) == "200 ms (100-400)"


def test_all_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--list"])

    assert ended.value.code == 0
    assert set(capsys.readouterr().out.split()) == set(NAMES)


def test_a_benchmark_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pod-strat"])

    assert ended.value.code == 2
    assert "pod-start" in capsys.readouterr().err
