"""The watchdog of systemd: messages go out as long as the sync loop gets on, and only then.

They are sent from the loop that they vouch for. If that hangs, in whatever way, they stop, and
systemd ends the service and starts it anew; containers do not notice.
"""

from collections.abc import Callable

import trio

from trio_kubelet.process.notify import ServiceNotifier

MESSAGES_PER_PERIOD = 3
"""One may be late and another lost before systemd acts."""


async def feed_watchdog(
    notifier: ServiceNotifier, period_seconds: float, seconds_busy: Callable[[], float]
) -> None:
    """Tell the service manager for ever that the agent lives, while it does.

    `period_seconds` is WatchdogSec=, `seconds_busy()` for how long the slowest consumer of the
    sync loop has been at one message.
    """
    while True:
        if seconds_busy() < period_seconds:
            notifier.alive()
        await trio.sleep(period_seconds / MESSAGES_PER_PERIOD)
