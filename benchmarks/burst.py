"""Fifty pods at once: until the last container runs, beside the best that bare calls can do.

Bare calls are made for one, two, four and eight pods at a time; the fastest of these widths is
what the agent is held against. A width that is far behind is not measured again.
"""

import statistics
import time
from collections.abc import Sequence

from benchmarks.figures import Figure, ratio_of_medians
from benchmarks.real_node import RealNode

NAME = "burst"
ROUNDS = 2
PODS = 50
WIDTHS = (1, 2, 4, 8)
FAR_BEHIND = 1.15
LOOK_SECONDS = 0.25
"""Who looks more often takes part in what is measured."""

GOAL_RATIO = 1.2
GOAL_MEDIAN_POD = 0.6


async def measure(node: RealNode) -> list[Figure]:
    """Some rounds: bare calls at each width, then the agent."""
    bare: dict[int, list[float]] = {width: [] for width in WIDTHS}
    ours: list[float] = []
    median_pods: list[float] = []
    for _ in range(node.rounds_or(ROUNDS)):
        for width in _worth_measuring(bare):
            bare[width].append(await node.bare_burst(PODS, width))
        times = await _burst(node)
        ours.append(max(times))
        median_pods.append(statistics.median(times) / max(times))
    best = min(_measured_always(bare), key=lambda width: statistics.median(bare[width]))
    by_width = ", ".join(f"{w}: {statistics.median(bare[w]):.2f} s" for w in WIDTHS if bare[w])
    return [
        Figure(
            benchmark=NAME,
            name="50 pods, of the best bare calls",
            value=ratio_of_medians(ours, bare[best]),
            unit="x",
            goal=GOAL_RATIO,
            how=f"{statistics.median(ours):.2f} s; bare by width {by_width}",
        ),
        Figure(
            benchmark=NAME,
            name="median pod, of the last",
            value=statistics.median(median_pods),
            unit="x",
            goal=GOAL_MEDIAN_POD,
        ),
    ]


def _worth_measuring(bare: dict[int, list[float]]) -> Sequence[int]:
    """All widths in the first round, then those that were near the best."""
    measured = {width: min(seconds) for width, seconds in bare.items() if seconds}
    if not measured:
        return WIDTHS
    best = min(measured.values())
    return [width for width, seconds in measured.items() if seconds <= best * FAR_BEHIND]


def _measured_always(bare: dict[int, list[float]]) -> Sequence[int]:
    """The widths that stayed in to the last round: the others were far behind."""
    most = max(len(seconds) for seconds in bare.values())
    return [width for width, seconds in bare.items() if len(seconds) == most]


async def _burst(node: RealNode) -> list[float]:
    """The time of each pod."""
    async with node.agent() as running:
        uids = running.prepare(PODS)
        began_at = time.time_ns()
        running.release()
        started_at = await node.started_at(uids, LOOK_SECONDS)
        running.take_away()
        return [(started_at[uid] - began_at) / 1e9 for uid in uids]
