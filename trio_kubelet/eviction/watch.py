"""Observes the node again and again, and says which pressures it is under.

There is no event for a disk that fills up, so it is measured, by the one provider of statistics,
which waits for no disk that hangs. The nearer a threshold, the sooner comes the next observation;
the kernel's words about memory bring it at once. Who keeps pods away (admission) and who tells the
cluster (the node's conditions) ask for `current`; who evicts waits for the next observation.
"""

from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import define, field

from state_machines.pressure import PRESSURE
from trio_kubelet.config.eviction import SIGNALS, Signal
from trio_kubelet.eviction.observations import observations
from trio_kubelet.eviction.pressure import Assessment, Pressures, assess, with_thresholds
from trio_kubelet.eviction.rhythm import PERIOD_SECONDS, seconds_to_next_look
from trio_kubelet.eviction.thresholds import Threshold
from trio_kubelet.stats.values import NodeReading
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.telemetry import Journal, Transition

log = structlog.get_logger("eviction")

DEADLINE_SECONDS = 20.0
"""The time that a round waits for the provider, which gives up on disks and runtime sooner."""

_EVERYWHERE = frozenset(signal for signal, row in SIGNALS.items() if row.is_everywhere)


@define(kw_only=True, eq=False)
class PressureWatch:
    """Owner of what is known of the node's pressures.

    `read(time)` reads the node at `time` (trio's clock) or later. `by_mem_available`: the signal
    for memory is the kernel's MemAvailable.
    """

    _thresholds: tuple[Threshold, ...]
    _transition_seconds: float
    _read: Callable[[float], Awaitable[NodeReading]]
    _journal: Journal
    _by_mem_available: bool = False
    _assessment: Assessment | None = field(init=False, default=None)
    _resumed: Assessment | None = field(init=False, default=None)
    """The assessment of an earlier agent, which holds until the first observation."""
    _missing: frozenset[Signal] = field(init=False, default=frozenset())
    _wanted: trio.Event = field(init=False, factory=trio.Event)
    _observed: trio.Event = field(init=False, factory=trio.Event)
    on_change: Callbacks[[]] = field(init=False, factory=Callbacks)
    on_observed: Callbacks[[Assessment]] = field(init=False, factory=Callbacks)

    def current(self) -> Pressures | None:
        """The pressures that the node is under; None before any agent has observed it."""
        known = self._assessment or self._resumed
        return known.pressures if known is not None else None

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        """The configured thresholds."""
        return self._thresholds

    def resume(self, assessment: Assessment) -> None:
        """Go on from the assessment of an earlier agent. Before `run`."""
        self._resumed = assessment

    def use(self, thresholds: tuple[Threshold, ...], transition_seconds: float) -> None:
        """Go on with other thresholds, and observe the node at once."""
        self._thresholds, self._transition_seconds = thresholds, transition_seconds
        if self._assessment is not None:
            self._assessment = with_thresholds(self._assessment, thresholds)
        if self._resumed is not None:
            self._resumed = with_thresholds(self._resumed, thresholds)
        self.look_now()

    def look_now(self) -> None:
        """Observe the node at once: something has changed."""
        self._wanted.set()

    async def newer_than(self, time: float) -> Assessment:
        """The assessment of an observation that began after `time` (trio's clock)."""
        while self._assessment is None or self._assessment.observed.at <= time:
            await self._observed.wait()
        return self._assessment

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe for ever; the first observation is there before others start."""
        await self._round()
        task_status.started()
        while True:
            with trio.move_on_after(self._seconds_to_next_look()):
                await self._wanted.wait()
            await self._round()

    def _seconds_to_next_look(self) -> float:
        if self._assessment is None:
            return PERIOD_SECONDS
        return seconds_to_next_look(self._thresholds, self._assessment.observed)

    async def _round(self) -> None:
        self._wanted = trio.Event()
        at = trio.current_time()
        try:
            with trio.move_on_after(DEADLINE_SECONDS) as scope:
                self._take(await self._read(at), at)
            if scope.cancelled_caught:
                log.warning("node measurement timed out")
        except Exception:
            log.exception("node measurement failed")

    def _take(self, reading: NodeReading, at: float) -> None:
        before = self._assessment or self._resumed or Assessment()
        observed = observations(
            reading, at, before.observed.layout, by_mem_available=self._by_mem_available
        )
        self._tell_missing(frozenset(observed.signals))
        self._assessment = assess(before, self._thresholds, observed, self._transition_seconds)
        self._tell_thresholds(before, self._assessment)
        self._write_down_steps(self._assessment)
        self._observed.set()
        self._observed = trio.Event()
        self.on_observed.call(self._assessment)
        if before.pressures != self._assessment.pressures:
            self.on_change.call()

    def _write_down_steps(self, assessment: Assessment) -> None:
        for kind, row in assessment.steps.items():
            if not row.stays:
                self._journal.transition(
                    PRESSURE.name,
                    kind,
                    Transition(source=row.source, event=row.event, target=row.target),
                )

    def _tell_missing(self, measured: frozenset[Signal]) -> None:
        """Warn once of a signal that is measured no more, or that every node has."""
        before = (
            frozenset(self._assessment.observed.signals) if self._assessment is not None else None
        )
        expected = _EVERYWHERE if before is None else before | self._missing
        missing = expected - measured
        for signal in sorted(missing - self._missing):
            log.warning("node measurement incomplete", signal=str(signal))
        self._missing = missing

    def _tell_thresholds(self, before: Assessment, after: Assessment) -> None:
        for threshold in after.crossed_since:
            if threshold not in before.crossed_since:
                log.warning("eviction threshold crossed", **_shown(threshold))
        for threshold in before.crossed_since:
            if threshold not in after.crossed_since:
                log.info("eviction threshold no longer crossed", **_shown(threshold))


def _shown(threshold: Threshold) -> dict[str, str]:
    return {"signal": str(threshold.signal), "threshold": threshold.value.text}
