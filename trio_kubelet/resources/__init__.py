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
from trio_kubelet.resources.cgroup_tree import CgroupError, CgroupTree
from trio_kubelet.resources.cgroups import CgroupBusy, Cgroups, CgroupSettings
from trio_kubelet.resources.node import MachineSize, node_capacity
from trio_kubelet.resources.pod_resources import QosClass, pod_limits, pod_requests, qos_class
from trio_kubelet.resources.systemd_slices import SystemdError, SystemdSlices

__all__ = [
    "CgroupBusy",
    "CgroupConfig",
    "CgroupDriver",
    "CgroupError",
    "CgroupName",
    "CgroupSettings",
    "CgroupTree",
    "Cgroups",
    "MachineSize",
    "PodCgroupSettings",
    "QosClass",
    "SystemdError",
    "SystemdSlices",
    "cgroup_parent",
    "cpu_weight",
    "milli_cpu_to_quota",
    "milli_cpu_to_shares",
    "node_capacity",
    "pod_cgroup_config",
    "pod_cgroup_name",
    "pod_limits",
    "pod_requests",
    "qos_cgroup_configs",
    "qos_class",
]
