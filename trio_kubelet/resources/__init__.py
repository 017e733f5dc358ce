"""The resources of the node that a pod may use: its resource sums, its QoS class, its cgroups.

`pod_resources`, `cgroup_config` and `cgroup_names` are pure. `cgroups` acts on the kernel's
cgroup trees (v1, hybrid and v2; directly or through systemd).
"""

from trio_kubelet.resources.cgroup_config import (
    CgroupConfig,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    quota_period_us,
)
from trio_kubelet.resources.cgroup_names import CgroupDriver, cgroup_parent
from trio_kubelet.resources.cgroup_tree import CgroupError, CgroupTree
from trio_kubelet.resources.cgroups import Cgroups
from trio_kubelet.resources.pod_resources import pod_limits, pod_requests, qos_class

__all__ = [
    "CgroupConfig",
    "CgroupDriver",
    "CgroupError",
    "CgroupTree",
    "Cgroups",
    "cgroup_parent",
    "milli_cpu_to_quota",
    "milli_cpu_to_shares",
    "pod_limits",
    "pod_requests",
    "qos_class",
    "quota_period_us",
]
