"""When the remains of dead pods are removed: containers, sandboxes, logs and folders.

Nobody waits for that, and it costs the runtime as much as the stop. So it is done a few pods at
a time, while the node is idle, and at the latest some time after the pod was released. Only a pod
with the same UID as a dead one does not wait. What is left when the agent is killed meanwhile is
found by housekeeping.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

PODS_AT_ONCE = 2
QUIET_SECONDS = 1.0
"""How long nothing may have been started or stopped before a pod is cleaned."""
LONGEST_SECONDS = 30.0
"""After how long a pod is cleaned even if the node is not idle."""


class CleaningTurns:
    """Gives one pod after another its turn. `wait_idle(seconds)` returns when it has been quiet."""

    def __init__(
        self, wait_idle: Callable[[float], Awaitable[None]], *, pods_at_once: int = PODS_AT_ONCE
    ) -> None:
        self._wait_idle = wait_idle
        self._limiter = trio.CapacityLimiter(pods_at_once)

    @asynccontextmanager
    async def turn(self, hurry: trio.Event) -> AsyncIterator[None]:
        """Hold a turn. Waits for it, but no longer once `hurry` is set.

        Cancelled while it waits, it holds nothing.
        """
        latest = trio.current_time() + LONGEST_SECONDS
        holder = object()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on, hurry, nursery.cancel_scope)
                await self._limiter.acquire_on_behalf_of(holder)
                with trio.move_on_at(latest):
                    await self._wait_idle(QUIET_SECONDS)
                nursery.cancel_scope.cancel()
            yield
        finally:
            if holder in self._limiter.statistics().borrowers:
                self._limiter.release_on_behalf_of(holder)


async def _cancel_on(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
