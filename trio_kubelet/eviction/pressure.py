"""From thresholds and observations to the pressures of a node: pure, one step an observation.

The lifecycle of a pressure is `state_machines/pressure.py`; here is which thresholds
(`thresholds.py`) count for which, when one is crossed, and what has to be remembered from one
observation to the next.
"""

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from state_machines.machine import Row
from state_machines.pressure import (
    PRESSURE,
    PressureEvent,
    PressureEvidence,
    PressureState,
    is_shown,
)
from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.thresholds import Threshold, with_container_disk
from trio_kubelet.k8s import NodeConditionType, Quantity

PressureRow = Row[PressureState, PressureEvent, PressureEvidence]

CONDITION_OF: Mapping[Signal, NodeConditionType] = {
    Signal.MEMORY: NodeConditionType.MEMORY_PRESSURE,
    Signal.ALLOCATABLE_MEMORY: NodeConditionType.MEMORY_PRESSURE,
    Signal.NODE_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.NODE_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.IMAGE_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.IMAGE_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.CONTAINER_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.CONTAINER_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.PIDS: NodeConditionType.PID_PRESSURE,
}
KINDS = tuple(dict.fromkeys(CONDITION_OF.values()))


@frozen(kw_only=True)
class Pressures:
    """Of what the node runs out, by its thresholds."""

    memory: bool = False
    disk: bool = False
    pid: bool = False


@frozen(kw_only=True)
class PressureHistory:
    """The knowledge after an observation. Times are trio's clock.

    `crossed` are the thresholds that are, and since when; `met` those of them that are to be acted
    on, for their grace period is over. `crossed_at` is when each was found crossed last. `steps`
    are the rows that this observation has taken.
    """

    observed: Observations = field(factory=lambda: Observations(at=float("-inf")))
    crossed: Mapping[Threshold, float] = field(factory=dict)
    met: tuple[Threshold, ...] = ()
    states: Mapping[NodeConditionType, PressureState] = field(
        factory=lambda: dict.fromkeys(KINDS, PressureState.RELIEVED)
    )
    crossed_at: Mapping[Threshold, float] = field(factory=dict)
    steps: Mapping[NodeConditionType, PressureRow] = field(factory=dict)

    @property
    def pressures(self) -> Pressures:
        """The pressures that the node is under."""
        return Pressures(
            memory=is_shown(self.states[NodeConditionType.MEMORY_PRESSURE]),
            disk=is_shown(self.states[NodeConditionType.DISK_PRESSURE]),
            pid=is_shown(self.states[NodeConditionType.PID_PRESSURE]),
        )


def next_history(
    before: PressureHistory,
    thresholds: Iterable[Threshold],
    observed: Observations,
    transition_seconds: float,
) -> PressureHistory:
    """The knowledge after one more observation.

    A threshold whose signal could not be measured counts as kept, as in the Go kubelet.
    """
    crossed = {
        threshold: before.crossed.get(threshold, observed.at)
        for threshold in with_container_disk(thresholds, observed.layout)
        if threshold.signal in observed.signals
        and is_crossed(
            threshold,
            observed.signals[threshold.signal],
            was_met=threshold in before.met,
        )
    }
    pressed = {CONDITION_OF[threshold.signal] for threshold in crossed}
    crossed_at = {**before.crossed_at, **dict.fromkeys(crossed, observed.at)}
    steps = {
        kind: PRESSURE.row(
            state,
            PressureEvent.CROSSED if kind in pressed else PressureEvent.KEPT,
            PressureEvidence(
                kept_seconds=observed.at - _last_crossed_at(kind, crossed_at, observed.at),
                transition_seconds=transition_seconds,
            ),
        )
        for kind, state in before.states.items()
    }
    return PressureHistory(
        observed=observed,
        crossed=crossed,
        met=tuple(
            threshold
            for threshold, since in crossed.items()
            if observed.at - since >= threshold.grace_seconds
        ),
        states={kind: row.target for kind, row in steps.items()},
        crossed_at=crossed_at,
        steps=steps,
    )


def is_crossed(threshold: Threshold, observed: Observed, *, was_met: bool) -> bool:
    """True if too little is available; of a threshold that was met the minimum reclaim counts."""
    return observed.available < wanted_amount(threshold, observed.capacity, reclaims=was_met)


def wanted_amount(threshold: Threshold, capacity: int, *, reclaims: bool = False) -> int:
    """The amount that must be available; `reclaims`: with the minimum reclaim on top."""
    wanted = threshold.value.of(Quantity(capacity)).value
    if reclaims and threshold.minimum_reclaim is not None:
        wanted += threshold.minimum_reclaim.of(Quantity(capacity)).value
    return wanted


def _last_crossed_at(
    kind: NodeConditionType, crossed_at: Mapping[Threshold, float], now: float
) -> float:
    """The last time that a threshold for a pressure was found crossed; now, if none ever was."""
    times = (at for each, at in crossed_at.items() if CONDITION_OF[each.signal] is kind)
    return max(times, default=now)
