"""The time that a machine took to become a node: from its boot until its new Node object is ready.

A node that the cluster knew before has not started up now, and none of this is said of it.
"""

from collections.abc import Callable

from trio_kubelet.metrics.definitions import Counts


class NodeStartup:
    """Made when the agent starts, `uptime_seconds` after the machine's boot."""

    def __init__(self, counts: Counts, now_ns: Callable[[], int], uptime_seconds: float) -> None:
        self._counts = counts
        self._now_ns = now_ns
        self._uptime_seconds = uptime_seconds
        self._started_at_ns = now_ns()
        self._registered_at_ns: int | None = None

    def registered(self, seconds: float) -> None:
        """A new Node object was made, so long after this was first tried."""
        counts, now_ns = self._counts, self._now_ns()
        before = (now_ns - self._started_at_ns) / 1e9 - seconds
        counts.startup_pre_kubelet_seconds.set(self._uptime_seconds)
        counts.startup_pre_registration_seconds.set(max(0.0, before))
        counts.startup_registration_seconds.set(seconds)
        self._registered_at_ns = now_ns

    def ready(self) -> None:
        """The node has become ready; the first time ends the start of a new one."""
        registered_at_ns, now_ns = self._registered_at_ns, self._now_ns()
        if registered_at_ns is None:
            return
        self._registered_at_ns = None
        counts = self._counts
        counts.startup_post_registration_seconds.set((now_ns - registered_at_ns) / 1e9)
        since_start = (now_ns - self._started_at_ns) / 1e9
        counts.startup_seconds.set(self._uptime_seconds + since_start)
