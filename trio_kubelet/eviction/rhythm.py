"""The time of a node's next observation: before what is left can have been used up. Pure.

The kernel tells of some crossings (`memory_events.py`), not of all of them, and not of disks. So
the next observation comes when a threshold could be crossed at the earliest: a node with much
left is looked at every ten seconds, one that is near a threshold twice a second.
"""

from collections.abc import Iterable, Mapping

from trio_kubelet.config.eviction import SIGNALS, Resource
from trio_kubelet.eviction.observations import Observations
from trio_kubelet.eviction.pressure import wanted_amount
from trio_kubelet.eviction.thresholds import Threshold

PERIOD_SECONDS = 10.0
LEAST_SECONDS = 0.5

_GI = 1 << 30
FASTEST_PER_SECOND: Mapping[Resource, int] = {
    Resource.MEMORY: _GI,
    Resource.STORAGE: _GI,
    Resource.INODES: 50_000,
    Resource.PIDS: 10_000,
}
"""The use that is reckoned with: as fast as one busy process of a large machine writes to memory,
makes files, and forks."""


def seconds_to_next_look(thresholds: Iterable[Threshold], observed: Observations) -> float:
    """The time after an observation until the next one.

    Thresholds that are crossed already ask for nothing sooner: whoever acts on them asks himself.
    """
    left = (
        (amounts.available - wanted_amount(threshold, amounts.capacity))
        / FASTEST_PER_SECOND[SIGNALS[threshold.signal].resource]
        for threshold in thresholds
        if (amounts := observed.signals.get(threshold.signal)) is not None
        and amounts.available >= wanted_amount(threshold, amounts.capacity)
    )
    return min(PERIOD_SECONDS, max(LEAST_SECONDS, min(left, default=PERIOD_SECONDS)))
