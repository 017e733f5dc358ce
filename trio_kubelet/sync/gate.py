"""Whether the runtime can be worked with, and whether the sync loop still turns.

`RuntimeGate` is the one place that knows if the runtime answers and if its network is ready.
The consumers of the sync loop wait at it, and a change of its state wakes whoever asked to be
told. `LoopMonitor` remembers when the loop last turned: the health endpoint and the watchdog of
systemd ask it.
"""

from collections.abc import Callable

import trio
from attrs import evolve, frozen


@frozen(kw_only=True)
class RuntimeState:
    """What the runtime said last. `reason` says why it is not up, or its network not ready."""

    up: bool = False
    network_ready: bool = False
    reason: str = "container runtime status check may not have completed yet"
    network_reason: str = ""


class RuntimeGate:
    """Open while the runtime is up. Written by the runtime check alone."""

    def __init__(self) -> None:
        self.state = RuntimeState()
        self._opened = trio.Event()
        self._listeners: list[Callable[[RuntimeState, RuntimeState], None]] = []

    def add_listener(self, listener: Callable[[RuntimeState, RuntimeState], None]) -> None:
        """Call `listener(before, after)` at each change; it must not block."""
        self._listeners.append(listener)

    def update(self, state: RuntimeState) -> None:
        """Take over what the runtime said."""
        before, self.state = self.state, state
        if state.up and not self._opened.is_set():
            self._opened.set()
        elif not state.up and self._opened.is_set():
            self._opened = trio.Event()
        if before != state:
            for listener in self._listeners:
                listener(before, state)

    def mark_down(self, reason: str) -> None:
        """The runtime did not answer."""
        self.update(evolve(self.state, up=False, network_ready=False, reason=reason))

    async def wait_up(self) -> None:
        """Return as soon as the runtime is up, at once if it is."""
        await self._opened.wait()


class LoopMonitor:
    """When each consumer of the sync loop last turned, by trio's clock.

    A consumer that waits for the runtime turns as well: a loop that waits is not a loop that
    hangs, and a unit that waits for its runtime must not be killed for it.
    """

    def __init__(self) -> None:
        self._turned_at: dict[str, float] = {}

    def turned(self, consumer: str) -> None:
        """Note a turn of one consumer."""
        self._turned_at[consumer] = trio.current_time()

    def seconds_since_turn(self) -> float:
        """How long ago the slowest consumer turned; 0 before the first turn."""
        if not self._turned_at:
            return 0.0
        return trio.current_time() - min(self._turned_at.values())
