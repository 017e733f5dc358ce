"""The machine's facts: its identity, its kernel and distribution, its size.

Read once at the start, because none of it changes while the machine is up; a machine that was
changed was rebooted, or its agent is restarted. Blocking. What cannot be read is empty: a node
without a system UUID is still a node.
"""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import structlog
from attrs import evolve, field, frozen

from trio_kubelet.kernel.bounded_files import read_bounded
from trio_kubelet.resource_managers.machine_topology import (
    MachineTopology,
    flat_topology,
    read_topology,
)

log = structlog.get_logger("node")

_SYSTEM_UUIDS = (
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    "etc/machine-id",
)
_OS_RELEASES = ("etc/os-release", "usr/lib/os-release")
_PRETTY_NAME = re.compile(r"^PRETTY_NAME=(.*)$", re.MULTILINE)
_SWAP_TOTAL = re.compile(r"^SwapTotal:\s+(\d+) kB$", re.MULTILINE)
_SYSFS = Path("/sys")
_MEMINFO = Path("/proc/meminfo")
_HUGEPAGES = Path("/sys/kernel/mm/hugepages")
_MEMORY_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_HUGEPAGE_SIZE = re.compile(r"hugepages-(\d+)kB")

_NUMBER = re.compile(r"\d{1,18}", re.ASCII)

GO_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv6l": "arm",
    "armv7l": "arm",
    "armv8l": "arm",
    "i386": "386",
    "i686": "386",
    "loongarch64": "loong64",
    "ppc64le": "ppc64le",
    "riscv64": "riscv64",
    "s390x": "s390x",
}
"""The names that Go, Kubernetes and registries have for the machines of `uname -m`."""

OPERATING_SYSTEM = "linux"
MAX_FILE_BYTES = 64 << 10
"""Of a file with one fact; flags may name one that never ends."""


@frozen(kw_only=True)
class MachineSize:
    """The machine's resources.

    `cpu_milli` is in millicores; `hugepages` maps page size to the amount set aside, in bytes.
    """

    cpu_milli: int
    memory_bytes: int
    hugepages: Mapping[int, int] = field(factory=dict)


@frozen(kw_only=True)
class MachineInfo:
    """One machine.

    `storage_bytes` is the size of --root-dir's file system, `max_pids` how many tasks the kernel
    allows; None if unknown.
    """

    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel_version: str = ""
    os_image: str = ""
    architecture: str = ""
    size: MachineSize
    topology: MachineTopology
    swap_bytes: int = 0
    storage_bytes: int | None = None
    max_pids: int | None = None


def go_architecture(machine: str) -> str:
    """The architecture in Go's words; one that Go has no other word for stays as it is."""
    return GO_ARCHITECTURES.get(machine, machine)


def is_kernel_older_than(machine: MachineInfo, version: tuple[int, int]) -> bool:
    """True if the kernel's version is below this one; one that cannot be read is new enough."""
    matched = re.match(r"(\d{1,6})\.(\d{1,6})", machine.kernel_version, re.ASCII)
    return matched is not None and (int(matched[1]), int(matched[2])) < version


@frozen(kw_only=True)
class IdFiles:
    """The files that tell ids, by their paths on the machine; the first that is there counts."""

    machine: tuple[str, ...] = ("/etc/machine-id", "/var/lib/dbus/machine-id")
    boot: tuple[str, ...] = ("/proc/sys/kernel/random/boot_id",)


def read_machine(
    root_directory: Path, host: Path = Path("/"), ids: IdFiles | None = None
) -> MachineInfo:
    """Read it. `host` is where the machine's root is mounted. Raises OSError, ValueError."""
    ids = ids or IdFiles()
    kernel = os.uname()
    meminfo = host / "proc/meminfo"
    size = node_capacity(meminfo, host / "sys/kernel/mm/hugepages")
    return MachineInfo(
        machine_id=_first(host, ids.machine),
        system_uuid=_first(host, _SYSTEM_UUIDS),
        boot_id=_first(host, ids.boot),
        kernel_version=kernel.release,
        os_image=_os_image(host),
        architecture=go_architecture(platform.machine()),
        size=size,
        topology=_topology(host / "sys/devices/system", size),
        swap_bytes=_swap_bytes(meminfo.read_text(errors="replace")),
        storage_bytes=_storage_bytes(root_directory),
        max_pids=max_pids(host),
    )


def node_capacity(
    meminfo: Path = _MEMINFO, hugepages: Path = _HUGEPAGES, cpus: int | None = None
) -> MachineSize:
    """Read the machine's size; raises OSError or ValueError where the kernel does not tell."""
    total = _MEMORY_TOTAL.search(meminfo.read_text(errors="replace"))
    if total is None:
        raise ValueError(f"{meminfo} has no MemTotal")
    return MachineSize(
        cpu_milli=1000 * (cpus or os.cpu_count() or 1),
        memory_bytes=int(total[1]) << 10,
        hugepages=_hugepages(hugepages),
    )


def _hugepages(folder: Path) -> Mapping[int, int]:
    sizes: dict[int, int] = {}
    for each in sorted(folder.glob("hugepages-*kB")):
        matched = _HUGEPAGE_SIZE.fullmatch(each.name)
        if matched is not None:
            size = int(matched[1]) << 10
            sizes[size] = size * int((each / "nr_hugepages").read_text())
    return sizes


def _topology(sysfs: Path, size: MachineSize) -> MachineTopology:
    cpus = size.cpu_milli // 1000
    try:
        topology = read_topology(sysfs, cpus)
    except (OSError, ValueError) as error:
        log.warning("CPU topology read failed, assuming a flat one", error=str(error))
        topology = flat_topology(cpus)
    if any(node.memory_bytes for node in topology.numa_nodes):
        return topology
    # A kernel without NUMA does not say what its one node has.
    first, *others = topology.numa_nodes
    whole = evolve(first, memory_bytes=size.memory_bytes, hugepages=size.hugepages)
    return evolve(topology, numa_nodes=(whole, *others))


def _first(host: Path, candidates: tuple[str, ...]) -> str:
    """The content of the first of these files that can be read; the others are older places."""
    for candidate in candidates:
        try:
            content = read_bounded(host / candidate.lstrip("/"), MAX_FILE_BYTES)
            return content.decode(errors="replace").strip().strip("\0")
        except OSError:
            continue
    return ""


def _os_image(host: Path) -> str:
    """The distribution as it calls itself (PRETTY_NAME in os-release)."""
    matched = _PRETTY_NAME.search(_first(host, _OS_RELEASES))
    return matched[1].strip().strip("\"'") if matched is not None else "Linux"


def _swap_bytes(meminfo: str) -> int:
    matched = _SWAP_TOTAL.search(meminfo)
    return int(matched[1]) << 10 if matched is not None else 0


def max_pids(host: Path) -> int | None:
    """Return the smaller of the limits on process ids and on threads: both bound the tasks."""
    limits = (_first(host, (f"proc/sys/kernel/{name}",)) for name in ("pid_max", "threads-max"))
    numbers = (int(limit) for limit in limits if _NUMBER.fullmatch(limit))
    return min(numbers, default=None)


def _storage_bytes(root_directory: Path) -> int | None:
    """The size of a file system; that of the nearest folder above where there is none yet."""
    for folder in (root_directory, *root_directory.absolute().parents):
        try:
            found = os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("filesystem size read failed", path=str(folder), error=str(error))
            return None
        return found.f_blocks * found.f_frsize
    return None


def apparmor_enabled(sysfs: Path = _SYSFS) -> bool:
    """True if AppArmor is on and its filesystem is there. Read once at the start; blocking."""
    if not (sysfs / "kernel/security/apparmor").exists():
        return False
    try:
        return (sysfs / "module/apparmor/parameters/enabled").read_text().startswith("Y")
    except OSError:
        return False
