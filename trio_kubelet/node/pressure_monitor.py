"""Measures the node every ten seconds and says which pressures it is under.

There is no event for a disk that fills up, so it is asked, in a thread: a file system that hangs
holds up nothing but the next measurement. Who keeps pods away (admission) and who tells the
cluster (the node's conditions) ask for `current`; evictions will take the history.
"""

from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import define, field

from state_machines.pressure import PRESSURE
from trio_kubelet.node.observer import Pressures
from trio_kubelet.node.pressure import Observations, PressureHistory, next_history
from trio_kubelet.node.signals import Measurement, MeasurementSources, measure
from trio_kubelet.node.thresholds import Threshold
from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.telemetry import Journal, Transition

log = structlog.get_logger("node")

PERIOD_SECONDS = 10.0
DEADLINE_SECONDS = 5.0
"""The time that a round waits for the runtime, and for the disks."""

IMAGE_FOLDER_SECONDS = 300.0
"""Where images are is asked again so often: it changes with the runtime's configuration."""


@define(kw_only=True, eq=False)
class PressureMonitor:
    """Owner of what is known of the node's pressures.

    `client` is asked where the images are; None for a runtime that keeps none on a disk.
    """

    _thresholds: tuple[Threshold, ...]
    _transition_seconds: float
    _client: RuntimeClient | None
    _sources: MeasurementSources
    _journal: Journal
    _history: PressureHistory | None = field(init=False, default=None)
    _image_folder: Path | None = field(init=False, default=None)
    _image_folder_due_at: float = field(init=False, default=-1.0)
    _problems: dict[str, str] = field(init=False, factory=dict)
    _threads: trio.CapacityLimiter = field(init=False, factory=lambda: trio.CapacityLimiter(1))
    on_change: Callbacks[[]] = field(init=False, factory=Callbacks)

    def current(self) -> Pressures | None:
        """The pressures that the node is under; None before it was measured for the first time."""
        return self._history.pressures if self._history is not None else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure for ever; the first measurement is there before others start."""
        await self._round()
        task_status.started()
        while True:
            await trio.sleep(PERIOD_SECONDS)
            await self._round()

    async def _round(self) -> None:
        try:
            await self._find_image_folder()
            await self._measure()
        except Exception:
            log.exception("node measurement failed")

    async def _measure(self) -> None:
        if self._threads.available_tokens == 0:
            return  # A file system still hangs.
        look = partial(measure, self._sources, self._image_folder)
        with trio.move_on_after(DEADLINE_SECONDS):
            at = trio.current_time()
            found = await run_in_thread(look, limiter=self._threads, abandon_on_cancel=True)
            self._take(found, at)

    async def _find_image_folder(self) -> None:
        if self._client is None or trio.current_time() < self._image_folder_due_at:
            return
        with trio.move_on_after(DEADLINE_SECONDS):
            try:
                answer = await self._client.image_fs_info()
            except RpcError as error:
                log.debug("image filesystem request failed", error=str(error))
                return
            folders = [each.fs_id.mountpoint for each in answer.image_filesystems]
            self._image_folder = Path(folders[0]) if folders and folders[0] else None
            self._image_folder_due_at = trio.current_time() + IMAGE_FOLDER_SECONDS

    def _take(self, found: Measurement, at: float) -> None:
        self._tell_problems(found)
        before = self._history or PressureHistory()
        observed = Observations(at=at, signals=found.signals)
        self._history = next_history(before, self._thresholds, observed, self._transition_seconds)
        self._tell_thresholds(before, self._history)
        self._write_down_steps(self._history)
        if before.pressures != self._history.pressures:
            self.on_change.call()

    def _write_down_steps(self, history: PressureHistory) -> None:
        for kind, row in history.steps.items():
            if not row.stays:
                self._journal.transition(
                    PRESSURE.name,
                    kind,
                    Transition(source=row.source, event=row.event, target=row.target),
                )

    def _tell_problems(self, found: Measurement) -> None:
        for name, problem in found.problems.items():
            if self._problems.get(name) != problem:
                log.warning("node measurement incomplete", what=name, error=problem)
        self._problems = dict(found.problems)

    def _tell_thresholds(self, before: PressureHistory, after: PressureHistory) -> None:
        for threshold in after.crossed.keys() - before.crossed.keys():
            log.warning(
                "eviction threshold crossed",
                signal=threshold.signal,
                threshold=threshold.value.text,
            )
        for threshold in before.crossed.keys() - after.crossed.keys():
            log.info(
                "eviction threshold no longer crossed",
                signal=threshold.signal,
                threshold=threshold.value.text,
            )
