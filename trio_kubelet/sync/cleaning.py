"""Turns for removing the remains of dead pods: containers, sandboxes, logs and folders.

Nobody waits for that, and it costs the runtime as much as the stop. So it is done a few pods at
a time, while the node is idle, and at the latest some time after the pod was released. Only a pod
with the same UID as a dead one does not wait. What is left when the agent is killed meanwhile is
found by housekeeping.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from trio_kubelet.tasks.fair_limiter import FairLimiter

PODS_AT_ONCE = 3
PODS_OF_NAMESPACE = 2
"""One may have volumes that take minutes to be removed."""
QUIET_SECONDS = 1.0
"""The time without starts and stops before a pod is cleaned."""
LONGEST_SECONDS = 30.0
"""After how long a pod is cleaned even if the node is not idle."""


class CleaningTurns:
    """Gives one pod after another its turn. `wait_idle(seconds)` returns when it has been quiet."""

    def __init__(
        self, wait_idle: Callable[[float], Awaitable[None]], *, pods_at_once: int = PODS_AT_ONCE
    ) -> None:
        self._wait_idle = wait_idle
        self._limiter = FairLimiter(pods_at_once, min(pods_at_once, PODS_OF_NAMESPACE))

    @asynccontextmanager
    async def turn(
        self, namespace: str, hurry: trio.Event, released_at: float
    ) -> AsyncIterator[None]:
        """Hold a turn for a pod of a namespace. Waits for it, but no longer once `hurry` is set.

        `released_at` is in trio's clock. Cancelled while it waits, it holds nothing.
        """
        latest = released_at + LONGEST_SECONDS
        share, holder, is_held = self._limiter.share(namespace), object(), False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on, hurry, nursery.cancel_scope)
                await share.acquire_on_behalf_of(holder)
                is_held = True
                with trio.move_on_at(latest):
                    await self._wait_idle(QUIET_SECONDS)
                nursery.cancel_scope.cancel()
            yield
        finally:
            if is_held:
                share.release_on_behalf_of(holder)


async def _cancel_on(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
