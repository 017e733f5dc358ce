"""What a pod may use of the node: its resource sums, its QoS class, its cgroups.

`pod_resources`, `cgroup_config` and `cgroup_names` are pure. `cgroups` acts on the kernel's
cgroup trees (v1, hybrid and v2; directly or through systemd) and `node` reads the machine's size.
"""

from trio_kubelet.resources.cgroup_config import (
    CgroupConfig,
    PodCgroupSettings,
    cpu_weight,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
    pod_cgroup_config,
    qos_cgroup_configs,
)
from trio_kubelet.resources.cgroup_names import (
    CgroupDriver,
    CgroupName,
    cgroup_parent,
    pod_cgroup_name,
)
from trio_kubelet.resources.pod_resources import QosClass, pod_limits, pod_requests, qos_class

__all__ = [
    "CgroupConfig",
    "CgroupDriver",
    "CgroupName",
    "PodCgroupSettings",
    "QosClass",
    "cgroup_parent",
    "cpu_weight",
    "milli_cpu_to_quota",
    "milli_cpu_to_shares",
    "pod_cgroup_config",
    "pod_cgroup_name",
    "pod_limits",
    "pod_requests",
    "qos_cgroup_configs",
    "qos_class",
]
