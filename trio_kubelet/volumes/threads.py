"""Threads for volumes, by what they may wait for.

A path of the node may be on a network file system that does not answer, and the removal of a large
volume takes minutes. Each kind of work has threads of its own, so that none waits for another:
not the pods whose volumes are on a disk that answers, and not the housekeeping. Within a kind a
pod has its share: all of its paths may be on the disk that does not answer.
"""

from attrs import field, frozen

from trio_kubelet.fair_limiter import FairLimiter

MAX_THREADS = 16
"""Of one kind: enough for many mounts at once, few enough for a disk that hangs."""
MAX_THREADS_OF_POD = 4


def _limiter() -> FairLimiter:
    return FairLimiter(MAX_THREADS, MAX_THREADS_OF_POD)


@frozen(kw_only=True)
class VolumeThreads:
    """One limiter for each kind of work, shared by the pods' UIDs.

    `preparing`: what is made in the folders of pods. `removing`: what is unmounted and deleted
    there. `host_paths`: every look at a path of the node outside of them. `listing`: which pods
    have a folder.
    """

    preparing: FairLimiter = field(factory=_limiter)
    removing: FairLimiter = field(factory=_limiter)
    host_paths: FairLimiter = field(factory=_limiter)
    listing: FairLimiter = field(factory=lambda: FairLimiter(1, 1))
