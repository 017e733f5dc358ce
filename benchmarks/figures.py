"""Figures and the goals that they are held against: values, a table, JSON. Pure."""

import statistics
from collections.abc import Iterable, Sequence

from attrs import frozen

Json = dict[str, object]

HEADINGS = ("benchmark", "figure", "measured", "goal", "", "how")


@frozen(kw_only=True)
class Figure:
    """One number of a benchmark.

    `goal` is the largest value that is good enough; None for what is only reported. `unit` is
    `x` for a ratio. `how` says in a few words what the number was made of.
    """

    benchmark: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    how: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        return None if self.goal is None else self.value <= self.goal

    @property
    def row(self) -> tuple[str, ...]:
        """The figure as a line of the table."""
        goal = "" if self.goal is None else f"≤ {number(self.goal)} {self.unit}"
        verdict = {None: "", True: "met", False: "NOT MET"}[self.met]
        measured = f"{number(self.value)} {self.unit}"
        return (self.benchmark, self.name, measured, goal, verdict, self.how)

    @property
    def as_json(self) -> Json:
        """The figure for a program to read."""
        return {
            "benchmark": self.benchmark,
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
            "how": self.how,
        }


def table(figures: Iterable[Figure]) -> str:
    """All figures, one a line, in columns."""
    rows: Sequence[tuple[str, ...]] = (HEADINGS, *(figure.row for figure in figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def ratio_of_medians(ours: Sequence[float], bare: Sequence[float]) -> float:
    """How many times as long ours took, by the medians of the rounds."""
    return statistics.median(ours) / statistics.median(bare)


def spread(seconds: Sequence[float]) -> str:
    """Median, least and most of some times, in milliseconds."""
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{middle * 1000:.0f} ms ({low * 1000:.0f}-{high * 1000:.0f})"


def number(value: float) -> str:
    """A value as tables show it: two decimals where it is small."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
