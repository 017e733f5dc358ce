"""Trying again what failed: how long to wait, and how often to log it.

Whoever repeats something holds a `Retries`: it counts the failures in a row, waits longer after
each by a `BackoffPolicy`, and begins anew after a success. Work that runs for ever reports none:
there a failure that comes long after the last attempt began counts as the first.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import trio
from structlog.typing import FilteringBoundLogger

from state_machines.backoff import BackoffPolicy, delay_seconds

LOGGED_EVERY_SECONDS = 60.0


def stretched(seconds: float, jitter: float, chance: Callable[[], float] = random.random) -> float:
    """Return a time lengthened by a random share of it, `jitter` at most."""
    return seconds * (1 + jitter * chance())


class Retries:
    """The failures in a row of one thing. `chance` draws the jitter, from 0 to 1."""

    __slots__ = ("_chance", "_failures", "_logged_at", "_policy", "_tried_at")

    def __init__(self, policy: BackoffPolicy, chance: Callable[[], float] = random.random) -> None:
        self._policy = policy
        self._chance = chance
        self._failures = 0
        self._logged_at = -math.inf
        self._tried_at = math.inf

    def next_seconds(
        self, *, at_least: float | None = None, policy: BackoffPolicy | None = None
    ) -> float:
        """Count a failure; returns the seconds until the next attempt.

        `at_least` is what the other side asked for, `policy` one for this failure alone.
        """
        self._failures += 1
        policy = policy or self._policy
        delay = stretched(delay_seconds(policy, self._failures), policy.jitter, self._chance)
        return max(delay, at_least or 0.0)

    async def wait(self, *, at_least: float | None = None) -> None:
        """Count a failure, and wait until the next attempt is due.

        A failure later than the policy's `forget_after_seconds` after the last such wait counts
        as the first.
        """
        if trio.current_time() - self._tried_at > self._policy.forget_after_seconds:
            self._failures = 0
        await trio.sleep(self.next_seconds(at_least=at_least))
        self._tried_at = trio.current_time()

    def warn(self, log: FilteringBoundLogger, event: str, **facts: Any) -> None:
        """Log a failure: the first one, and then once a minute for as long as it fails."""
        now = trio.current_time()
        if now - self._logged_at >= LOGGED_EVERY_SECONDS:
            self._logged_at = now
            log.warning(event, **facts)

    def reset(self) -> None:
        """It succeeded: the next failure is a first one."""
        self._failures, self._logged_at = 0, -math.inf
