"""Why a node is not ready: what the runtime said last, and for how long it has been silent.

A runtime that is restarted is away for seconds; the node stays ready meanwhile, as with the Go
kubelet, which calls it down after half a minute. What a runtime says of itself counts at once.
"""

from collections.abc import Callable, Iterable

import trio

from trio_kubelet.callbacks import Callbacks
from trio_kubelet.runtime.gate import RuntimeGate, RuntimeState

SILENCE_SECONDS = 30.0
"""A runtime that has not answered for so long is down."""

START_SECONDS = 10.0
"""A start takes less, if the runtime is there."""

Errors = Callable[[], Iterable[str]]


def runtime_errors(last: RuntimeState | None, silent_seconds: float) -> tuple[str, ...]:
    """What keeps the node from being ready; none if nothing does.

    `last` is what the runtime answered last, None if it never did; `silent_seconds` is for how
    long it has not answered since.
    """
    if last is None:
        return (
            "container runtime status check may not have completed yet",
            "network state unknown",
        )
    errors = []
    if silent_seconds >= SILENCE_SECONDS:
        errors.append("container runtime is down")
    if not last.up:
        errors.append(f"container runtime not ready: {last.reason}")
    if last.network_error:
        errors.append(last.network_error)
    return tuple(errors)


def relist_errors(seconds_since: float, threshold_seconds: float) -> tuple[str, ...]:
    """What the age of the last relist says: infinite before the first one."""
    if seconds_since < threshold_seconds:
        return ()
    if seconds_since == float("inf"):
        return ("PLEG is not healthy: pleg has yet to be successful",)
    return (
        f"PLEG is not healthy: pleg was last seen active {seconds_since:.0f}s ago; "
        f"threshold is {threshold_seconds:.0f}s",
    )


class Readiness:
    """Collects why the node is not ready. `others` are asked as well: relist, storage, shutdown.

    `has_listed` says whether the runtime's containers are known by now.
    """

    def __init__(
        self,
        gate: RuntimeGate,
        others: Iterable[Errors] = (),
        *,
        has_listed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._others = tuple(others)
        self._has_listed = has_listed
        self._began_at = trio.current_time()
        self._last: RuntimeState | None = None
        self._silent_since: float | None = None
        self.on_change: Callbacks[[]] = Callbacks()
        self._take(gate.state)
        gate.on_change.add(lambda _, state: self._on_state(state))

    def errors(self) -> tuple[str, ...]:
        """Why the node is not ready now, in the order in which the condition lists it."""
        silent = 0.0
        if self._silent_since is not None:
            silent = trio.current_time() - self._silent_since
        found = runtime_errors(self._last, silent)
        return (*found, *(error for ask in self._others for error in ask()))

    def is_early(self) -> bool:
        """Whether errors may be there only because the agent has just begun to look."""
        knows = self._last is not None and self._has_listed()
        return not knows and trio.current_time() - self._began_at < START_SECONDS

    def _on_state(self, state: RuntimeState) -> None:
        self._take(state)
        self.on_change.call()

    def _take(self, state: RuntimeState) -> None:
        if state.up or state.answered:
            self._last, self._silent_since = state, None
        elif state.answered is False and self._silent_since is None:
            self._silent_since = trio.current_time()
