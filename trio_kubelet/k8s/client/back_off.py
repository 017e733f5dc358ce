"""How long a reflection waits before it tries again: doubling, with jitter, up to a limit."""

import random

from attrs import define

FIRST_SECONDS = 0.8
FIRST_FORBIDDEN_SECONDS = 0.1
"""The Node authorizer learns of a pod's secrets a moment after the node does."""

LONGEST_SECONDS = 30.0


@define
class BackOff:
    """Pauses between attempts; each is drawn from once to twice a span that doubles."""

    _rng: random.Random
    _failures: int = 0

    def reset(self) -> None:
        """Begin again with the shortest pause."""
        self._failures = 0

    def next_seconds(self, first_seconds: float = FIRST_SECONDS) -> float:
        """Return the next pause, and count the failure."""
        span = min(LONGEST_SECONDS / 2, first_seconds * 2.0**self._failures)
        self._failures = min(self._failures + 1, 20)
        return span * (1 + self._rng.random())
