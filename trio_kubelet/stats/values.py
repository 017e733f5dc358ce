"""The use of the node, its pods and their containers: frozen values.

None stands for what the kernel or the runtime does not tell: it is left out of every answer, and
never shown as 0. Bytes, nanoseconds and counts are integers; times are nanoseconds since the epoch.
"""

from collections.abc import Mapping

from attrs import field, frozen


@frozen(kw_only=True)
class PsiLine:
    """One line of a pressure file: the kernel's averages (percent), and its sum in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


@frozen(kw_only=True)
class PsiResource:
    """The pressure on tasks (PSI): some of them, or all at once."""

    some: PsiLine
    full: PsiLine


@frozen(kw_only=True)
class PsiStats:
    """PSI of a cgroup, or of the machine; None where the kernel has none."""

    cpu: PsiResource | None = None
    memory: PsiResource | None = None
    io: PsiResource | None = None


@frozen(kw_only=True)
class CpuUsage:
    """CPU time since the cgroup was made; `nano_cores` is the rate since the sample before."""

    total_ns: int
    user_ns: int | None = None
    system_ns: int | None = None
    nano_cores: int | None = None


@frozen(kw_only=True)
class MemoryUsage:
    """Memory in bytes, and page faults. `limit` is the cgroup's own; None without one.

    The working set is what is in use without the page cache that is not (inactive files).
    """

    usage: int
    working_set: int
    rss: int | None = None
    page_faults: int | None = None
    major_page_faults: int | None = None
    limit: int | None = None


@frozen(kw_only=True)
class SwapUsage:
    """Swap in bytes; `limit` is the cgroup's own, None without one."""

    usage: int
    limit: int | None = None


@frozen
class CgroupIo:
    """The bytes that a cgroup has read from a device and written; `number` is `major:minor`."""

    number: str
    read_bytes: int
    written_bytes: int
    reads: int
    writes: int


@frozen
class DiskIo:
    """The kernel's counts of a disk, in the order of /proc/diskstats; times in milliseconds."""

    number: str
    name: str
    reads: int
    reads_merged: int
    sectors_read: int
    read_ms: int
    writes: int
    writes_merged: int
    sectors_written: int
    write_ms: int
    in_flight: int
    busy_ms: int
    weighted_ms: int


@frozen(kw_only=True)
class CgroupDetails:
    """Values that only monitoring asks for: parts of the memory, limits, throttling, disks."""

    cache: int | None = None
    mapped_file: int | None = None
    active_file: int | None = None
    inactive_file: int | None = None
    kernel: int | None = None
    peak: int | None = None
    limit_hits: int | None = None
    soft_limit: int | None = None
    own_page_faults: int | None = None
    own_major_page_faults: int | None = None
    cpu_shares: int | None = None
    cpu_period_us: int | None = None
    cpu_quota_us: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None
    oom_kills: int | None = None
    tasks_limit: int | None = None
    io: tuple[CgroupIo, ...] = ()


@frozen(kw_only=True)
class Usage:
    """The use of one cgroup, or a container of which the runtime told, at a time."""

    time_ns: int
    cpu: CpuUsage | None = None
    memory: MemoryUsage | None = None
    swap: SwapUsage | None = None
    tasks: int | None = None
    pressures: PsiStats = PsiStats()
    details: CgroupDetails = CgroupDetails()


@frozen(kw_only=True)
class Interface:
    """The traffic of a network interface."""

    name: str
    rx_bytes: int
    tx_bytes: int
    rx_errors: int
    tx_errors: int
    rx_packets: int | None = None
    tx_packets: int | None = None
    rx_dropped: int | None = None
    tx_dropped: int | None = None


@frozen(kw_only=True)
class NetworkStats:
    """The interfaces of a network namespace; `default` is the name of the one that leads out."""

    time_ns: int
    interfaces: tuple[Interface, ...]
    default: str = ""


@frozen(kw_only=True)
class Filesystem:
    """A file system, and how much of it something uses.

    `device` is the kernel's number of a whole one: of two folders it tells if they share a disk.
    """

    time_ns: int
    device: int | None = None
    available: int | None = None
    capacity: int | None = None
    used: int | None = None
    inodes: int | None = None
    inodes_free: int | None = None
    inodes_used: int | None = None


@frozen(kw_only=True)
class VolumeStats:
    """A volume of a pod. `ephemeral`: it counts as the pod's use of the node's own disk.

    `claim` is the claim that it is bound to, in the pod's namespace; empty if it is no claim.
    """

    name: str
    filesystem: Filesystem
    ephemeral: bool
    claim: str = ""


@frozen(kw_only=True)
class ContainerStats:
    """A container that runs. `cgroup` is empty if none was found."""

    name: str
    id: str
    image: str
    started_at_ns: int
    usage: Usage
    cgroup: str = ""
    root: Filesystem | None = None
    logs: Filesystem | None = None


@frozen(kw_only=True)
class SandboxStats:
    """The use of a pod's sandbox itself, where it has a cgroup."""

    id: str
    cgroup: str
    usage: Usage
    started_at_ns: int


@frozen(kw_only=True)
class PodStats:
    """A pod. `cgroup` is empty if it has none of its own, `started_at_ns` 0 without a sandbox.

    `layers` is the use of the writable layers of all its containers, those that have ended too.
    `is_counted` is False if it uses at least so much of the disk: it has more files than can be
    counted.
    """

    uid: str
    namespace: str
    name: str
    started_at_ns: int
    usage: Usage
    containers: tuple[ContainerStats, ...]
    cgroup: str = ""
    sandbox: SandboxStats | None = None
    network: NetworkStats | None = None
    volumes: tuple[VolumeStats, ...] = ()
    layers: Filesystem | None = None
    ephemeral_storage: Filesystem | None = None
    is_counted: bool = True


@frozen(kw_only=True)
class SystemContainer:
    """A cgroup that is not a pod's: `kubelet`, `runtime`, `pods`."""

    name: str
    cgroup: str
    started_at_ns: int
    usage: Usage


@frozen(kw_only=True)
class NodeStats:
    """The machine as a whole. `tasks` and `max_tasks` are process ids, taken and to be had.

    `available_memory_bytes` is what the kernel takes for free or easy to free (MemAvailable).
    `disks` are there for who asks for details.
    """

    usage: Usage
    memory_bytes: int
    available_memory_bytes: int | None = None
    swap_bytes: int
    booted_at_ns: int
    network: NetworkStats | None = None
    tasks: int | None = None
    max_tasks: int | None = None
    root: Filesystem | None = None
    images: Filesystem | None = None
    containers: Filesystem | None = None
    disks: tuple[DiskIo, ...] = ()


@frozen(kw_only=True)
class NodeReading:
    """The node without its pods.

    `pods` is the use of the cgroup of all of them, None if they have none with a limit.
    """

    node: NodeStats
    pods: Usage | None = None


@frozen(kw_only=True)
class Stats:
    """One collection. `cgroups` are those between the root and the pods, by their paths.

    `problems` say what could not be had, by what it is; what is said of the rest is complete.
    """

    node: NodeStats
    pods: tuple[PodStats, ...]
    system: tuple[SystemContainer, ...] = ()
    cgroups: Mapping[str, Usage] = field(factory=dict)
    problems: Mapping[str, str] = field(factory=dict)
