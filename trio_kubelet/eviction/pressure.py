"""From thresholds and observations to the pressures of a node: pure, one step an observation.

The lifecycle of a pressure is `state_machines/pressure.py`; here is which thresholds
(`thresholds.py`) count for which, when one is crossed, and what has to be remembered from one
observation to the next.
"""

from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from state_machines.machine import Row
from state_machines.pressure import (
    PRESSURE,
    PressureEvent,
    PressureEvidence,
    PressureState,
    is_shown,
)
from trio_kubelet.config.eviction import SIGNALS
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.thresholds import Threshold, with_container_disk
from trio_kubelet.k8s import NodeConditionType, Quantity

PressureRow = Row[PressureState, PressureEvent, PressureEvidence]

KINDS = tuple(dict.fromkeys(row.condition for row in SIGNALS.values()))


@frozen(kw_only=True)
class Pressures:
    """The resources that the node runs out of, by its thresholds."""

    memory: bool = False
    disk: bool = False
    pid: bool = False


@frozen(kw_only=True)
class Assessment:
    """The state of thresholds and pressures after an observation. Times are trio's clock.

    `crossed_since` has the thresholds that are crossed; `met` are those of them that are to be
    acted on, for their grace period is over. `last_crossed_at` has each that ever was. `steps` are
    the rows that this observation has taken.
    """

    observed: Observations = field(factory=lambda: Observations(at=float("-inf")))
    crossed_since: Mapping[Threshold, float] = field(factory=dict)
    met: tuple[Threshold, ...] = ()
    states: Mapping[NodeConditionType, PressureState] = field(
        factory=lambda: dict.fromkeys(KINDS, PressureState.RELIEVED)
    )
    last_crossed_at: Mapping[Threshold, float] = field(factory=dict)
    steps: Mapping[NodeConditionType, PressureRow] = field(factory=dict)

    @property
    def pressures(self) -> Pressures:
        """The pressures that the node is under."""
        return Pressures(
            memory=is_shown(self.states[NodeConditionType.MEMORY_PRESSURE]),
            disk=is_shown(self.states[NodeConditionType.DISK_PRESSURE]),
            pid=is_shown(self.states[NodeConditionType.PID_PRESSURE]),
        )


def assess(
    before: Assessment,
    thresholds: Iterable[Threshold],
    observed: Observations,
    transition_seconds: float,
) -> Assessment:
    """The assessment after one more observation.

    A threshold whose signal could not be measured counts as kept, as in the Go kubelet.
    """
    crossed_since = {
        threshold: before.crossed_since.get(threshold, observed.at)
        for threshold in with_container_disk(thresholds, observed.layout)
        if threshold.signal in observed.signals
        and is_crossed(
            threshold,
            observed.signals[threshold.signal],
            was_met=threshold in before.met,
        )
    }
    pressed = {SIGNALS[threshold.signal].condition for threshold in crossed_since}
    last_crossed_at = {**before.last_crossed_at, **dict.fromkeys(crossed_since, observed.at)}
    steps = {
        kind: PRESSURE.row(
            state,
            PressureEvent.CROSSED if kind in pressed else PressureEvent.KEPT,
            PressureEvidence(
                kept_seconds=_kept_seconds(kind, last_crossed_at, observed.at),
                transition_seconds=transition_seconds,
            ),
        )
        for kind, state in before.states.items()
    }
    return Assessment(
        observed=observed,
        crossed_since=crossed_since,
        met=met_thresholds(crossed_since, observed.at),
        states={kind: row.target for kind, row in steps.items()},
        last_crossed_at=last_crossed_at,
        steps=steps,
    )


def with_thresholds(before: Assessment, thresholds: Iterable[Threshold]) -> Assessment:
    """The assessment that goes on with other thresholds, before the next observation.

    A threshold of the same value has been crossed for as long. Of those that are configured no
    more, the one that was crossed last holds its pressure for the transition period.
    """
    kept = {each.key: each for each in with_container_disk(thresholds, before.observed.layout)}
    last_crossed_at: dict[Threshold, float] = {}
    dropped: dict[NodeConditionType, tuple[Threshold, float]] = {}
    for each, at in sorted(before.last_crossed_at.items(), key=lambda item: item[1]):
        if each.key in kept:
            last_crossed_at[kept[each.key]] = at
        else:
            dropped[SIGNALS[each.signal].condition] = (each, at)
    return evolve(
        before,
        crossed_since={
            kept[each.key]: at for each, at in before.crossed_since.items() if each.key in kept
        },
        met=tuple(kept[each.key] for each in before.met if each.key in kept),
        last_crossed_at={**last_crossed_at, **dict(dropped.values())},
    )


def met_thresholds(crossed_since: Mapping[Threshold, float], now: float) -> tuple[Threshold, ...]:
    """The crossed thresholds whose grace period is over."""
    return tuple(
        threshold
        for threshold, since in crossed_since.items()
        if now - since >= threshold.grace_seconds
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


def _kept_seconds(
    kind: NodeConditionType, last_crossed_at: Mapping[Threshold, float], now: float
) -> float:
    """The time since a threshold for a pressure was found crossed last; 0 if none ever was."""
    times = (at for each, at in last_crossed_at.items() if SIGNALS[each.signal].condition is kind)
    return now - max(times, default=now)
