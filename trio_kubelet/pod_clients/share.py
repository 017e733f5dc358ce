"""The share of the node for the probes of one pod: lookups of names, and time of the event loop.

What a container answers costs the node more than the container: a frame of nine bytes is 40
microseconds of the event loop. So the work that answers make is counted, by what it is known to
cost, and a pod whose probes have used up what is theirs waits before its next ones run. Other pods
do not notice.
"""

import structlog
import trio
from attrs import frozen

from state_machines.backoff import BackoffPolicy
from trio_kubelet.k8s import Container
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("probes")

SHARE = 0.05
"""Of a processor, for one pod; two hundred ordinary probes a second take half of it."""
SAVED_SECONDS = 0.5
"""The time that a pod may use at once after it has used nothing."""
READ_SECONDS = 30e-6
FRAME_SECONDS = 40e-6
LINE_SECONDS = 5e-6
PIECE_SECONDS = 15e-6
REDIRECT_SECONDS = 2e-3
"""Another connection, perhaps with another handshake."""
BYTE_SECONDS = 10e-9
RUN_SECONDS = 500e-6
"""A run itself: a connection, or a call of the runtime, and what follows from its result."""


class ProbeShare:
    """The share of one pod, whose `uid` and `namespace` these are."""

    def __init__(self, uid: str = "", namespace: str = "") -> None:
        self.uid = uid
        self.namespace = namespace
        self._left_seconds = SAVED_SECONDS
        self._filled_at: float | None = None
        self._complaints = Retries(BackoffPolicy(initial_seconds=1.0, cap_seconds=1.0))

    def use(self, seconds: float) -> None:
        """Count work that was done for the pod."""
        self._left_seconds -= seconds

    async def wait(self) -> None:
        """Return when the pod has not used up its share. Cancelled, nothing has changed."""
        self._fill()
        if self._left_seconds >= 0:
            return
        self._complaints.warn(
            log, "answers to probes cost too much, running probes of the pod less often"
        )
        while self._left_seconds < 0:
            await trio.sleep(-self._left_seconds / SHARE)
            self._fill()

    def _fill(self) -> None:
        now = trio.current_time()
        passed = max(0.0, now - self._filled_at) if self._filled_at is not None else 0.0
        self._left_seconds = min(SAVED_SECONDS, self._left_seconds + passed * SHARE)
        self._filled_at = now


@frozen(kw_only=True)
class Target:
    """Whom a probe asks: an instance of a container, with the address and share of its pod."""

    container: Container
    container_id: str
    pod_ip: str
    share: ProbeShare
