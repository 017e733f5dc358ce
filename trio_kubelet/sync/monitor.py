"""Whether the sync loop still turns: the health endpoint and systemd's watchdog ask here."""

import trio


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
