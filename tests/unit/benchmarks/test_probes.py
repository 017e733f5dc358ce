"""How late probes were, by the times at which their targets were asked."""

import math

import pytest

from benchmarks.probes import due_at, lateness


@pytest.mark.parametrize(
    ("times", "due"),
    [
        ([10.25, 11.25, 12.25], 10.25),
        ([10.5, 11.25, 12.5], 10.25),
        ([10.25, 12.25, 13.5], 10.25),
    ],
)
def test_a_probe_is_due_in_step_with_its_earliest_run(times: list[float], due: float) -> None:
    assert due_at(times) == due


@pytest.mark.parametrize(
    ("times", "late"),
    [
        ([10.25, 11.25, 12.25, 13.25], [0, 0, 0]),
        ([10.25, 11.5, 12.25, 13.25], [0, 0.25, 0]),
        ([10.25, 12.75, 13.25], [0, 1.5, 0.5]),
        ([9.25, 10.25, 11.25], [0, 0, math.inf]),
        ([10.25, 11.24, 12.25], [0, 0, 0]),
        ([], [math.inf] * 3),
    ],
)
def test_a_run_is_late_by_what_it_comes_after_its_time(
    times: list[float], late: list[float]
) -> None:
    assert list(lateness(times, due=3.25, since=10.0, until=12.5)) == late
