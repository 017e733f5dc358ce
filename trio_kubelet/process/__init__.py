"""What the agent is to its machine: a service of systemd, with limits and a lock of its own."""

from trio_kubelet.process.limits import lower_oom_score, raise_open_files_limit
from trio_kubelet.process.lock import LockHeld, hold_lock
from trio_kubelet.process.notify import ServiceNotifier, watchdog_seconds

__all__ = [
    "LockHeld",
    "ServiceNotifier",
    "hold_lock",
    "lower_oom_score",
    "raise_open_files_limit",
    "watchdog_seconds",
]
