"""Warnings that the node's users are told once at the start about its host, as events of the node.

Some hosts are refused, unless the configuration allows them.
"""

from collections.abc import Sequence
from pathlib import Path

import structlog
from attrs import frozen

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.runtime.config.config_error import ConfigError
from trio_kubelet.runtime.config.dns import (
    CHECK_LIMITS_FOR_RESOLV_CONF,
    parse_resolv_conf,
    resolv_conf_complaint,
)

log = structlog.get_logger("node")

SWAPS = Path("/proc/swaps")


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
