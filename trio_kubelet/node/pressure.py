"""From thresholds and measurements to the pressures of a node: pure, one step a measurement.

The lifecycle of a pressure is `state_machines/pressure.py`; here is which thresholds count for
which, and what has to be remembered from one measurement to the next.
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
from trio_kubelet.k8s import NodeConditionType
from trio_kubelet.node.observation import Pressures
from trio_kubelet.node.thresholds import CONDITION_OF, Observations, Threshold, is_crossed

PressureRow = Row[PressureState, PressureEvent, PressureEvidence]
KINDS = tuple(dict.fromkeys(CONDITION_OF.values()))


@frozen(kw_only=True)
class PressureHistory:
    """What is known after a measurement.

    `crossed` are the thresholds that are. `crossed_at` is when one of a kind was found crossed
    last, by trio's clock. `steps` are the rows that this measurement has taken.
    """

    crossed: frozenset[Threshold] = frozenset()
    states: Mapping[NodeConditionType, PressureState] = field(
        factory=lambda: dict.fromkeys(KINDS, PressureState.RELIEVED)
    )
    crossed_at: Mapping[NodeConditionType, float] = field(factory=dict)
    steps: Mapping[NodeConditionType, PressureRow] = field(factory=dict)

    @property
    def pressures(self) -> Pressures:
        """What the node is under."""
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
    """What is known after one more measurement.

    A threshold whose signal could not be measured counts as kept, as in the Go kubelet.
    """
    crossed = frozenset(
        threshold
        for threshold in thresholds
        if threshold.signal in observed.signals
        and is_crossed(
            threshold,
            observed.signals[threshold.signal],
            was_crossed=threshold in before.crossed,
        )
    )
    pressed = {CONDITION_OF[threshold.signal] for threshold in crossed}
    crossed_at = {**before.crossed_at, **dict.fromkeys(pressed, observed.at)}
    steps = {
        kind: PRESSURE.row(
            state,
            PressureEvent.CROSSED if kind in pressed else PressureEvent.KEPT,
            PressureEvidence(
                kept_seconds=observed.at - crossed_at.get(kind, observed.at),
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
