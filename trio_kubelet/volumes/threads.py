"""Threads for volumes, by what they may wait for.

A path of the node may be on a network file system that does not answer, and the removal of a large
volume takes minutes. Each kind of work has threads of its own, so that none waits for another:
not the pods whose volumes are on a disk that answers, and not the housekeeping.
"""

import trio
from attrs import field, frozen

MAX_THREADS = 16
"""Of one kind: enough for many mounts at once, few enough for a disk that hangs."""


def _limiter() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(MAX_THREADS)


@frozen(kw_only=True)
class VolumeThreads:
    """One limiter for each kind of work.

    `preparing`: what is made in the folders of pods. `removing`: what is unmounted and deleted
    there. `host_paths`: every look at a path of the node outside of them. `listing`: which pods
    have a folder.
    """

    preparing: trio.CapacityLimiter = field(factory=_limiter)
    removing: trio.CapacityLimiter = field(factory=_limiter)
    host_paths: trio.CapacityLimiter = field(factory=_limiter)
    listing: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))
