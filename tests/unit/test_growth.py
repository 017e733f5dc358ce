"""Growth that is more than chance, found in samples that go up and down."""

import pytest

from tests.growth import Sample, growth

HOUR = 3600


def run(*values: float, every_seconds: float = HOUR) -> list[Sample]:
    return [
        Sample(seconds=number * every_seconds, figures={"files": value})
        for number, value in enumerate(values)
    ]


def test_a_figure_that_grows_steadily_grows_by_all_of_it() -> None:
    found = growth([run(100, 110, 120, 130, 140)], "files")
    assert found.per_hour == pytest.approx(10)
    assert found.error == pytest.approx(0)
    assert found.hours == 4
    assert found.share == pytest.approx(40 / 120)


@pytest.mark.parametrize(
    "values", [(100,) * 8, (90, 110) * 4, (100, 95, 105, 100, 98, 106, 97, 101), (140, 120, 100)]
)
def test_a_figure_that_is_flat_falls_or_goes_up_and_down_does_not_grow(
    values: tuple[float, ...],
) -> None:
    assert growth([run(*values)], "files").share == 0


def test_a_slow_growth_is_found_beneath_ups_and_downs() -> None:
    values = [100 + number / 4 + (-3, 3)[number % 2] for number in range(100)]
    found = growth([run(*values)], "files")
    assert found.per_hour == pytest.approx(0.25, rel=0.05)
    assert found.share > 0.15


def test_runs_have_levels_of_their_own_and_one_slope() -> None:
    found = growth([run(10, 11, 12), run(50, 51, 52), run(5, 6, 7)], "files")
    assert found.per_hour == pytest.approx(1)
    assert found.hours == 6


@pytest.mark.parametrize("runs", [[run(1, 2)], [run(1), run(2), run(3)]])
def test_too_few_samples_say_nothing(runs: list[list[Sample]]) -> None:
    with pytest.raises(ValueError, match="say nothing"):
        growth(runs, "files")
