"""The host under the agent: what the machine and its kernel give it, as one value.

A machine with a kernel is opened here. The hollow world brings a host of its own
(`hollow/host.py`), so nobody else asks which of them it is. Some hosts are refused, unless the
configuration allows them; of others the node's users are warned once at the start, by events of the
node. What the configs of pods need to know of the host is gathered when the runtime has answered.
"""

import os
import resource
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from attrs import frozen

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.settings import Settings
from trio_kubelet.errors import ConfigError, StartError
from trio_kubelet.kernel.kernel_log import KERNEL_LOG
from trio_kubelet.kernel.limits import (
    KERNEL_DEFAULTS,
    SYSCTLS,
    other_kernel_defaults,
    raise_open_files_limit,
    set_kernel_defaults,
    set_oom_score,
)
from trio_kubelet.kernel.logind import Logind, open_logind
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.node.allocatable import Resources
from trio_kubelet.node.machine import IdFiles, MachineInfo, apparmor_enabled, read_machine
from trio_kubelet.node.profile import (
    AddressError,
    HostNetwork,
    choose_addresses,
    is_unspecified,
    node_name,
    parse_node_ip,
)
from trio_kubelet.probes import AskOverNetwork, NodeNetwork
from trio_kubelet.resources import CgroupDriver, CgroupError, CgroupTree
from trio_kubelet.rpc import Channel, Transport
from trio_kubelet.runtime.client import CONTAINERD_HEADERS
from trio_kubelet.runtime.config.dns import (
    CHECK_LIMITS_FOR_RESOLV_CONF,
    NodeDns,
    ResolvConf,
    parse_resolv_conf,
    resolv_conf_complaint,
)
from trio_kubelet.runtime.images.collection import DiskSpace
from trio_kubelet.runtime.images.filesystem import disk_space
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.volumes.mount import keeps_out_of_swap, make_shared

log = structlog.get_logger("node")

SWAPS = Path("/proc/swaps")
SYSTEM_DEVICES = Path("/sys/devices/system")
HOSTS_FILE = Path("/etc/hosts")
_SELINUX = Path("/sys/fs/selinux/enforce")
_THERMAL = "/sys/devices/system/cpu/cpu{}/thermal_throttle"


@frozen
class HostWarning:
    """An event of type Warning about the node."""

    reason: str
    message: str


CGROUP_V1 = HostWarning(
    "CgroupV1",
    "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. "
    "Please migrate to cgroup v2. More information at "
    "https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1",
)
MEMORY_ON_DISK = HostWarning(
    "PossibleMemoryBackedVolumesOnDisk",
    "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, "
    "etc.) might be swapped to disk and should no longer be considered secure.",
)


def host_problem(
    configuration: KubeletConfiguration, cgroup_version: int, swap_areas: Sequence[str]
) -> str:
    """Why the configuration forbids to run on such a host; "" if it does not."""
    if cgroup_version == 1 and configuration.fail_cgroup_v1:
        return (
            "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is "
            "unsupported and will be removed in a future release; set failCgroupV1: false in the "
            "configuration to run all the same"
        )
    if cgroup_version == 1 and configuration.single_process_oom_kill is False:
        return (
            "singleProcessOOMKill must not be explicitly set to false when using cgroup v1, which "
            "kills single processes; leave it out of the configuration"
        )
    if swap_areas and configuration.fail_swap_on:
        return (
            "running with swap on is not supported, please disable swap or set --fail-swap-on "
            f"flag to false. {SWAPS} contained: {', '.join(swap_areas)}"
        )
    return ""


def host_warnings(
    cgroup_version: int, swap_areas: Sequence[str], *, noswap: bool
) -> tuple[HostWarning, ...]:
    """The warnings. `noswap`: file systems in memory are kept out of the swap."""
    told = []
    if cgroup_version == 1:
        told.append(CGROUP_V1)
    if swap_areas and not noswap:
        told.append(MEMORY_ON_DISK)
    return tuple(told)


def swap_areas(text: str) -> tuple[str, ...]:
    """The swap areas that /proc/swaps lists, without those in memory."""
    lines = text.split("\n")[1:]
    return tuple(
        line.split()[0] for line in lines if line.strip() and not line.startswith("/dev/zram")
    )


def read_swap_areas(swaps: Path = SWAPS) -> tuple[str, ...]:
    """The swap areas in use now; a kernel without swap has no such file. Blocks."""
    try:
        return swap_areas(swaps.read_text(errors="replace"))
    except FileNotFoundError:
        return ()
    except OSError as error:
        log.warning("swap area list read failed, assuming none", error=str(error))
        return ()


def resolv_conf_warnings(configuration: KubeletConfiguration) -> tuple[HostWarning, ...]:
    """Warnings about the node's resolv.conf: parts that pods cannot have, or no file. Blocks."""
    path = configuration.resolv_conf
    if not path:
        return ()
    complaint: str | None
    try:
        found = parse_resolv_conf(Path(path).read_bytes().decode(errors="surrogateescape"))
        complaint = resolv_conf_complaint(path, found, configuration.cluster_domain)
    except OSError as error:
        complaint = f"open {path}: {str(error.strerror).lower()}"
    except ConfigError as error:
        complaint = str(error)
    return (HostWarning(CHECK_LIMITS_FOR_RESOLV_CONF, complaint),) if complaint else ()


def read_hosts(path: Path = HOSTS_FILE) -> str:
    """The node's hosts file; bytes that are no UTF-8 are kept as surrogates. Raises OSError."""
    return path.read_bytes().decode(errors="surrogateescape")


Transports = tuple[Transport, Transport, Transport | None]
"""The ways to CRI's runtime service and image service, and to containerd's own, if it has them."""


@frozen(kw_only=True)
class Host:
    """One host, with the functions of it that tests and the hollow runtime replace."""

    transports: Transports
    machine: MachineInfo
    cgroups: CgroupTree | None
    """None where pods have none."""
    apparmor: bool
    """Profiles can be enforced."""
    privileged: bool
    """Mounts can be made and files given away."""
    images_on_disk: bool
    """The runtime keeps images on a file system of this machine."""
    measure_image_disk: Callable[[str], DiskSpace] | None
    """Measures the file system of a folder with images; None if there is none. Blocks."""
    set_up: Callable[[Settings], None]
    """Gives the agent its limits, and its root folder the mounts that it needs. Blocks."""
    warnings: Callable[[], tuple[HostWarning, ...]]
    """Returns what there is to warn of. Blocks."""
    ask_over_network: AskOverNetwork
    """Runs the probes that need the pods' network."""
    read_hosts: Callable[[], str] = read_hosts
    """Returns the hosts file. Blocks."""
    kernel_log: Path | None = None
    """The file in which the kernel tells what it does; None where there is none."""
    open_logind: Callable[[], AbstractAsyncContextManager[Logind]] | None = None
    """Connects to what shuts the machine down; None where there is nothing."""
    sysfs: Path | None = None
    """The folder that tells which CPUs are online; None where they are always the same."""
    root: str = ""
    """The place of the machine's root folder, "" for the agent's own: statistics read its /proc."""


def find_cgroups(settings: Settings) -> CgroupTree:
    """Find the cgroups of a host on which the agent can run. Raises StartError for another one."""
    if os.geteuid() != 0:
        raise StartError(
            "must be run as root, because it mounts volumes and makes cgroups; "
            "try sudo, or --hollow for a runtime without a kernel"
        )
    try:
        tree = CgroupTree.find(mount_points())
    except CgroupError as error:
        raise StartError(f"{error}; mount the cgroup hierarchies") from error
    if problem := host_problem(settings.configuration, tree.version, read_swap_areas()):
        raise StartError(problem)
    return tree


@asynccontextmanager
async def open_host(settings: Settings, cgroups: CgroupTree) -> AsyncIterator[Host]:
    """Yield this machine, with the way to its runtime, which need not be there.

    Raises StartError for an endpoint that cannot be one, or a machine that cannot be read.
    """
    yield Host(
        transports=_transports(settings),
        machine=await read_this_machine(settings),
        cgroups=cgroups,
        apparmor=apparmor_enabled(),
        privileged=True,
        images_on_disk=True,
        measure_image_disk=disk_space,
        set_up=_set_up,
        warnings=partial(_warnings, cgroups),
        ask_over_network=NodeNetwork().ask,
        kernel_log=KERNEL_LOG,
        open_logind=open_logind,
        sysfs=SYSTEM_DEVICES,
    )


async def read_this_machine(settings: Settings, host: Path = Path("/")) -> MachineInfo:
    """Read the machine; `host` is where its root is mounted. Raises StartError."""
    options = settings.options
    ids = IdFiles(machine=_listed(options.machine_id_file), boot=_listed(options.boot_id_file))
    read = partial(read_machine, Path(options.root_dir), host, ids)
    try:
        return await run_in_thread(read)
    except (OSError, ValueError) as error:
        raise StartError(f"the size of the machine cannot be read: {error}") from error


def _listed(paths: str) -> tuple[str, ...]:
    """Paths with commas between."""
    return tuple(filter(None, paths.split(",")))


def _transports(settings: Settings) -> Transports:
    configuration = settings.configuration
    endpoint = configuration.container_runtime_endpoint
    try:
        runtime, containerd = Channel(endpoint), Channel(endpoint, CONTAINERD_HEADERS)
    except ValueError as error:
        raise StartError(f"containerRuntimeEndpoint: {error}") from error
    try:
        images = Channel(configuration.image_service_endpoint or endpoint)
    except ValueError as error:
        raise StartError(f"imageServiceEndpoint: {error}") from error
    return runtime, images, containerd


def _set_up(settings: Settings) -> None:
    raise_open_files_limit(settings.configuration.max_open_files)
    set_oom_score(settings.configuration.oom_score_adj)
    if settings.configuration.protect_kernel_defaults:
        check_kernel_defaults()
    else:
        set_kernel_defaults()
    root = Path(settings.options.root_dir)
    try:
        if make_shared(root):
            log.info("root folder made a shared mount", path=str(root))
    except OSError as error:
        log.warning(
            "root folder cannot be made a shared mount, pods with mountPropagation will not see "
            "what is mounted later",
            path=str(root),
            error=str(error),
        )


def check_kernel_defaults(folder: Path = SYSCTLS) -> None:
    """Raises StartError for a kernel whose settings are other than a node needs."""
    try:
        others = other_kernel_defaults(folder)
    except OSError as error:
        raise StartError(f"protectKernelDefaults: {error.filename}: {error.strerror}") from error
    if others:
        wrong = ", ".join(
            f"{name} is {value} and must be {KERNEL_DEFAULTS[name]}"
            for name, value in others.items()
        )
        raise StartError(
            f"protectKernelDefaults (--protect-kernel-defaults): {wrong}; set them in "
            "/etc/sysctl.d, or let the agent do it with protectKernelDefaults false"
        )


def _warnings(cgroups: CgroupTree) -> tuple[HostWarning, ...]:
    return host_warnings(cgroups.version, read_swap_areas(), noswap=keeps_out_of_swap())


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
