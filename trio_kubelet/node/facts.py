"""The facts of the node that configs of pods need, gathered once at the start. Blocking."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import structlog

from trio_kubelet.config.settings import Settings
from trio_kubelet.node.addresses import (
    AddressError,
    HostNetwork,
    choose_addresses,
    is_unspecified,
    parse_node_ip,
)
from trio_kubelet.node.allocatable import Resources
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.node.profile import node_name
from trio_kubelet.resources import CgroupDriver, CgroupTree
from trio_kubelet.runtime.config.config_error import ConfigError
from trio_kubelet.runtime.config.dns import NodeDns, ResolvConf, parse_resolv_conf
from trio_kubelet.runtime.node_facts import NodeFacts

log = structlog.get_logger("node")

HOSTS_FILE = Path("/etc/hosts")
_SELINUX = Path("/sys/fs/selinux/enforce")
_THERMAL = "/sys/devices/system/cpu/cpu{}/thermal_throttle"


def host_addresses(settings: Settings) -> tuple[str, ...]:
    """The node's addresses, of which its pods are told: --node-ip as it is, else what is found."""
    given = parse_node_ip(settings.options.node_ip)
    if given and not is_unspecified(given[0]):
        return given
    try:
        return choose_addresses(node_name(settings), given, HostNetwork())
    except AddressError as error:
        log.warning("node has no address", error=str(error))
        return ()


def gather_facts(
    settings: Settings,
    machine: MachineInfo,
    allocatable: Callable[[], Resources],
    *,
    cgroups: CgroupTree | None,
    driver: CgroupDriver,
) -> NodeFacts:
    """The facts for configs. Where pods have cgroups, that of all pods is there already."""
    return NodeFacts(
        settings=settings,
        host_ips=host_addresses(settings),
        allocatable=allocatable,
        memory_capacity_bytes=machine.size.memory_bytes,
        swap_capacity_bytes=machine.swap_bytes,
        page_size_bytes=resource.getpagesize(),
        hugepage_sizes=tuple(machine.size.hugepages),
        cgroup_driver=driver,
        cgroup_v2=cgroups is not None and cgroups.version != 1,
        swap_controller=cgroups is not None and cgroups.can_limit_swap(),
        selinux=_SELINUX.exists(),
        thermal_throttle_paths=tuple(
            path
            for path in (_THERMAL.format(cpu) for cpu in range(os.cpu_count() or 1))
            if Path(path).exists()
        ),
    )


def gather_dns(settings: Settings, host_ips: tuple[str, ...]) -> NodeDns:
    """The name servers that pods get to know. Blocks.

    A resolv.conf that cannot be read is empty; raises ConfigError for one that makes no sense.
    """
    configuration = settings.configuration
    resolv_conf: ResolvConf | None = None
    if configuration.resolv_conf:
        try:
            data = Path(configuration.resolv_conf).read_bytes()
            resolv_conf = parse_resolv_conf(data.decode(errors="surrogateescape"))
        except ConfigError as error:
            raise ConfigError(f"{configuration.resolv_conf}: {error}") from error
        except OSError as error:
            log.warning("resolv.conf read failed", path=configuration.resolv_conf, error=str(error))
            resolv_conf = ResolvConf()
    return NodeDns(
        cluster_dns=configuration.cluster_dns,
        cluster_domain=configuration.cluster_domain,
        resolv_conf=resolv_conf,
        node_ips=host_ips,
    )


def read_hosts(path: Path = HOSTS_FILE) -> str:
    """The node's hosts file; bytes that are no UTF-8 are kept as surrogates. Raises OSError."""
    return path.read_bytes().decode(errors="surrogateescape")
