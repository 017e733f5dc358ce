"""The facts of a node that the configs of sandboxes and containers need, as one value.

Whoever builds the agent gathers it from the settings, the kernel and the runtime; the functions
that make configs read nothing else, so a test can be any node.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from attrs import frozen

from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.k8s import Pod, Quantity
from trio_kubelet.resources import CgroupDriver
from trio_kubelet.runtime.config.names import CONTAINER_LOGS_DIRECTORY

DEFAULT_POD_LOGS = "/var/log/pods"


@frozen(kw_only=True)
class NodeFacts:
    """One node: its settings, and what machine and runtime have told."""

    settings: Settings
    host_ips: tuple[str, ...] = ()
    allocatable: Callable[[], Mapping[str, Quantity]] = dict
    """Returns what pods may have in all."""
    memory_capacity_bytes: int
    swap_capacity_bytes: int = 0
    page_size_bytes: int = 4096
    hugepage_sizes: tuple[int, ...] = ()
    """The sizes that the kernel offers, in bytes."""
    cgroup_driver: CgroupDriver = CgroupDriver.CGROUPFS
    """The runtime's, whatever `cgroupDriver` says."""
    cgroup_v2: bool = True
    """True if the hierarchy is the unified one."""
    swap_controller: bool = True
    """True if the kernel can limit swap for each cgroup."""
    selinux: bool = False
    thermal_throttle_paths: tuple[str, ...] = ()
    """The `/sys/devices/system/cpu/cpu<n>/thermal_throttle` that exist."""

    @property
    def configuration(self) -> KubeletConfiguration:
        """The node's KubeletConfiguration."""
        return self.settings.configuration

    @property
    def container_logs_directory(self) -> str:
        """The folder of links to containers' logs: beside the pods' logs, if those are moved."""
        pod_logs = self.configuration.pod_logs_dir
        if pod_logs == DEFAULT_POD_LOGS:
            return CONTAINER_LOGS_DIRECTORY
        return str(Path(pod_logs).parent / "containers")

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
