"""The facts of a node that the configs of sandboxes and containers need, as one value.

Whoever builds the agent gathers it from the configuration, the kernel and the runtime; the
functions that make configs read nothing else, so a test can be any node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from attrs import frozen

from trio_kubelet import DEFAULT_ROOT
from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.runtime.config.names import CONTAINER_LOGS_DIRECTORY


@frozen(kw_only=True)
class NodeFacts:
    """One node. Sizes are in bytes, periods in microseconds.

    Configuration (fields of KubeletConfiguration): `pod_logs_directory` podLogsDir,
    `cluster_domain`, `cgroup_driver`, `cgroup_root`, `cgroups_per_qos`, `cpu_cfs_quota`,
    `cpu_cfs_quota_period_us`, `seccomp_default`, `single_process_oom_kill`, `swap_behavior`
    memorySwap.swapBehavior, `memory_throttling_factor`, `memory_reservation_policy`;
    `memory_qos` and `stop_signals` are the gates MemoryQoS and ContainerStopSignals.
    `root_directory` is the flag --root-dir. `container_logs_directory` is where links to the
    logs of containers are put.

    Machine: `memory_capacity_bytes`, `swap_capacity_bytes`, `page_size_bytes`, `hugepage_sizes`
    (those that the kernel offers), `cgroup_v2` (unified), `swap_controller` (the kernel can
    limit swap for each cgroup), `selinux` (enabled), `thermal_throttle_paths` (the
    `/sys/devices/system/cpu/cpu<n>/thermal_throttle` that exist), `host_ips`.
    `allocatable` asks its owner what pods may have in all.
    """

    root_directory: str = DEFAULT_ROOT
    pod_logs_directory: str = "/var/log/pods"
    container_logs_directory: str = CONTAINER_LOGS_DIRECTORY
    cluster_domain: str = ""
    host_ips: tuple[str, ...] = ()
    allocatable: Callable[[], Mapping[str, Quantity]] = dict
    memory_capacity_bytes: int
    swap_capacity_bytes: int = 0
    page_size_bytes: int = 4096
    hugepage_sizes: tuple[int, ...] = ()
    cgroup_driver: CgroupDriver = CgroupDriver.CGROUPFS
    cgroup_root: str = "/"
    cgroups_per_qos: bool = True
    cgroup_v2: bool = True
    swap_controller: bool = True
    swap_behavior: str = ""
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    single_process_oom_kill: bool = False
    memory_qos: bool = False
    memory_throttling_factor: float = 0.9
    memory_reservation_policy: str = "None"
    seccomp_default: bool = False
    selinux: bool = False
    thermal_throttle_paths: tuple[str, ...] = ()
    stop_signals: bool = False

    def address_of(self, pod: Pod, ips: Sequence[str]) -> str:
        """The address at which the node asks a pod, whose `ips` the runtime tells; or empty."""
        known = self.host_ips if pod.spec.host_network else by_family(ips, self.host_ips)
        return known[0] if known else ""


def by_family(ips: Iterable[str], host_ips: Sequence[str]) -> tuple[str, ...]:
    """A pod's addresses as all are told them: one of the family of the node's first, one more.

    What is no address is left out.
    """
    addresses = [address for ip in ips if (address := _address(ip))]
    primary = _address(host_ips[0]) if host_ips else None
    versions = (6, 4) if primary is not None and primary.version == 6 else (4, 6)
    firsts = (next((a for a in addresses if a.version == v), None) for v in versions)
    return tuple(str(address) for address in firsts if address is not None)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
