"""Growth of a process's figures: a line through samples, and how much of it may be chance.

Samples of a busy node go up and down by what it does at the moment. The slope of a line that is
fitted to them says whether they grow all the same, and its standard error how sure that is. Runs of
one node on several days have one slope and a level each: the process of each run is another.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean

from attrs import frozen

BEYOND_CHANCE = 2.0
"""In standard errors."""


@frozen(kw_only=True)
class Sample:
    """The figures of a process at a time, in seconds since its run began."""

    seconds: float
    figures: Mapping[str, float]


@frozen(kw_only=True)
class Growth:
    """A line that is fitted to a figure: its mean, its growth an hour, and that growth's error."""

    level: float
    per_hour: float
    error: float
    hours: float
    """How long the figure was watched, all runs together."""

    @property
    def share(self) -> float:
        """Growth over all hours that is more than chance, as a share of the level; 0 or more."""
        certain = max(0.0, self.per_hour - BEYOND_CHANCE * self.error)
        return certain * self.hours / self.level if self.level else 0.0


def growth(runs: Sequence[Sequence[Sample]], figure: str) -> Growth:
    """Fit one slope to a figure of all runs. Raises ValueError for too few samples."""
    count = sum(map(len, runs))
    spare = count - len(runs) - 1
    if spare < 1:
        raise ValueError(f"{count} samples of {len(runs)} runs say nothing")
    along, across = [], []
    for run in runs:
        hours = [each.seconds / 3600 for each in run]
        values = [each.figures[figure] for each in run]
        middle, level = fmean(hours), fmean(values)
        along += [each - middle for each in hours]
        across += [each - level for each in values]
    spread = sum(x * x for x in along)
    slope = sum(x * y for x, y in zip(along, across, strict=True)) / spread
    rest = sum((y - slope * x) ** 2 for x, y in zip(along, across, strict=True))
    return Growth(
        level=fmean(each.figures[figure] for run in runs for each in run),
        per_hour=slope,
        error=sqrt(rest / spare / spread),
        hours=sum(run[-1].seconds - run[0].seconds for run in runs) / 3600,
    )
