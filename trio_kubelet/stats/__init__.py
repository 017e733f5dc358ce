"""The use of the node, and its users: one provider for all readers.

`provider.py` reads for all who ask; `values.py` is what they get, `summary.py` the form of it that
`/stats/summary` has. How the kernel writes its figures is in `kernel_text.py` and
`cgroup_values.py`, pure. Readers are the server, the metrics, and who has to evict.
"""

from trio_kubelet.stats.cgroup_reader import CgroupReader
from trio_kubelet.stats.disk_usage import PodPaths
from trio_kubelet.stats.provider import StatsProvider, StatsSources
from trio_kubelet.stats.summary import summary
from trio_kubelet.stats.values import (
    ContainerStats,
    Filesystem,
    NodeStats,
    PodStats,
    Stats,
    SystemContainer,
    Usage,
)

__all__ = [
    "CgroupReader",
    "ContainerStats",
    "Filesystem",
    "NodeStats",
    "PodPaths",
    "PodStats",
    "Stats",
    "StatsProvider",
    "StatsSources",
    "SystemContainer",
    "Usage",
    "summary",
]
