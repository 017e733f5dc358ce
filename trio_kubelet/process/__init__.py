"""What the agent is to its machine: a service of systemd, with limits and a lock of its own."""

from trio_kubelet.process.limits import raise_open_files_limit, set_oom_score
from trio_kubelet.process.lock import FileLock, hold_lock
from trio_kubelet.process.notify import ServiceNotifier, feed_watchdog, watchdog_seconds

__all__ = [
    "FileLock",
    "ServiceNotifier",
    "feed_watchdog",
    "hold_lock",
    "raise_open_files_limit",
    "set_oom_score",
    "watchdog_seconds",
]
