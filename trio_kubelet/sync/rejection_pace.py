"""The pace at which pods of one owner are rejected whose like would be rejected as well.

A controller makes a new pod for each that has failed, and the scheduler may bind it to the same
node: the node's condition is on its way, or it knows nothing of NUMA nodes. So that controllers do
not make hundreds of pods, the second pod of an owner within a minute waits before its Failed is
sent, and each further one twice as long as the last, up to a minute. Those of many that come at
once follow one another at a distance.
"""

from attrs import frozen

from state_machines.backoff import BackoffPolicy, delay_seconds
from trio_kubelet.k8s import Pod

WINDOW_SECONDS = 60.0
"""After the last rejection of an owner's pod was sent, the next one is its first again."""

DISTANCE_SECONDS = 10.0
"""Between two of an owner whose waits are the longest."""

PACE = BackoffPolicy(initial_seconds=1.0, cap_seconds=60.0)


@frozen
class _Rejections:
    """The number of an owner's pods that were rejected lately, and when the last one is told of."""

    count: int
    told_at: float


class RejectionPace:
    """Knows the owners whose pods were rejected within the last minute, by their UIDs."""

    def __init__(self) -> None:
        self._owners: dict[str, _Rejections] = {}

    def seconds(self, pod: Pod, now: float) -> float:
        """Count a rejection; return how long it is not told of. `now` is trio's clock."""
        self._owners = {
            uid: each for uid, each in self._owners.items() if now - each.told_at < WINDOW_SECONDS
        }
        owner = next((each.uid for each in pod.metadata.owner_references if each.controller), "")
        if not owner:
            return 0.0
        known = self._owners.get(owner, _Rejections(0, now))
        seconds = delay_seconds(PACE, known.count) if known.count else 0.0
        told_at = max(now + seconds, known.told_at + min(seconds, DISTANCE_SECONDS))
        self._owners[owner] = _Rejections(known.count + 1, told_at)
        return told_at - now
