"""From thresholds and measurements to the pressures of a node: pure, one step a measurement.

The lifecycle of a pressure is `state_machines/pressure.py`; here is which thresholds
(`thresholds.py`) count for which, when one is crossed, and what has to be remembered from one
measurement to the next.
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
from trio_kubelet.k8s import NodeConditionType, Quantity
from trio_kubelet.node.observer import Pressures
from trio_kubelet.node.thresholds import Threshold

PressureRow = Row[PressureState, PressureEvent, PressureEvidence]

CONDITION_OF: Mapping[Signal, NodeConditionType] = {
    Signal.MEMORY: NodeConditionType.MEMORY_PRESSURE,
    Signal.ALLOCATABLE_MEMORY: NodeConditionType.MEMORY_PRESSURE,
    Signal.NODE_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.NODE_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.IMAGE_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.IMAGE_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.PIDS: NodeConditionType.PID_PRESSURE,
}
KINDS = tuple(dict.fromkeys(CONDITION_OF.values()))


@frozen(kw_only=True)
class Measured:
    """The amounts of a signal, in bytes, inodes or process ids."""

    available: int
    capacity: int


@frozen(kw_only=True)
class Observations:
    """The measurements of one time; `at` is trio's clock. What failed is not in it."""

    at: float
    signals: Mapping[Signal, Measured] = field(factory=dict)


@frozen(kw_only=True)
class PressureHistory:
    """The knowledge after a measurement. Times are trio's clock.

    `crossed` are the thresholds that are, and since when. `crossed_at` is when each was found
    crossed last. `steps` are the rows that this measurement has taken.
    """

    crossed: Mapping[Threshold, float] = field(factory=dict)
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
    """The knowledge after one more measurement.

    A threshold whose signal could not be measured counts as kept, as in the Go kubelet.
    """
    crossed = {
        threshold: before.crossed.get(threshold, observed.at)
        for threshold in thresholds
        if threshold.signal in observed.signals
        and is_crossed(
            threshold,
            observed.signals[threshold.signal],
            was_crossed=threshold in before.crossed,
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
        crossed=crossed,
        states={kind: row.target for kind, row in steps.items()},
        crossed_at=crossed_at,
        steps=steps,
    )


def is_crossed(threshold: Threshold, measured: Measured, *, was_crossed: bool) -> bool:
    """True if too little is available; after a crossing the minimum reclaim counts as well."""
    capacity = Quantity(measured.capacity)
    wanted = threshold.value.of(capacity).value
    if was_crossed and threshold.minimum_reclaim is not None:
        wanted += threshold.minimum_reclaim.of(capacity).value
    return measured.available < wanted


def _last_crossed_at(
    kind: NodeConditionType, crossed_at: Mapping[Threshold, float], now: float
) -> float:
    """When one of the thresholds for a pressure was found crossed last; now, if none ever was."""
    times = (at for each, at in crossed_at.items() if CONDITION_OF[each.signal] is kind)
    return max(times, default=now)
