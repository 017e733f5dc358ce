"""The limits of the agent's own process, and the settings of the kernel that a node needs.

Some hosts deny one or the other. That is said once, and the agent goes on.
"""

import ctypes
import resource
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger("process")

OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")
SYSCTLS = Path("/proc/sys")

KERNEL_DEFAULTS = {
    "vm.overcommit_memory": 1,
    "vm.panic_on_oom": 0,
    "kernel.panic": 10,
    "kernel.panic_on_oops": 1,
    "kernel.keys.root_maxkeys": 1_000_000,
    "kernel.keys.root_maxbytes": 25_000_000,
}
"""The values that the Go kubelet gives the kernel: memory is granted as it is asked for and the OOM
killer decides; a kernel that fails boots again; there are keys for many containers."""

_M_MMAP_THRESHOLD = -3
LARGE_BLOCK_BYTES = 128 << 10
"""The C library's first threshold, which it would raise by itself, up to 32 MiB."""


def give_back_large_blocks() -> bool:
    """Have each large block of memory given back to the kernel as soon as it is freed, for good.

    By itself the C library keeps room for blocks as large as the largest that was freed: objects of
    a megabyte that come and go leave twice the memory that they had at a time. False where the C
    library has no such setting (musl, which does so anyway).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES))


def raise_open_files_limit(wanted: int) -> None:
    """Raise the limit of open files (maxOpenFiles) as far as the host allows; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _at_least(soft, wanted):
        return
    enough = hard if _at_least(hard, wanted) else wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, enough))
    except (ValueError, OSError) as error:
        # Only root may raise the hard limit, and nobody above the sysctl fs.nr_open.
        if soft != hard:
            # A hard limit that is above it already cannot even be set to what it is.
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        log.warning("open files limit increase failed", wanted=wanted, set=limit, error=str(error))


def _at_least(limit: int, wanted: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= wanted


def set_oom_score(score: int, file: Path = OOM_SCORE_FILE) -> None:
    """Set the agent's OOM score adjustment (oomScoreAdj, -1000 to 1000) if the host allows."""
    try:
        file.write_text(str(score))
    except OSError as error:
        log.warning("OOM score adjustment failed", wanted=score, error=error.strerror)


def other_kernel_defaults(folder: Path = SYSCTLS) -> dict[str, str]:
    """The settings of the kernel that are other than a node needs, with their values.

    One that this kernel does not have counts for nothing. Raises OSError.
    """
    values = {name: _other_value(name, folder) for name in KERNEL_DEFAULTS}
    return {name: value for name, value in values.items() if value is not None}


def set_kernel_defaults(folder: Path = SYSCTLS) -> None:
    """Give the kernel the settings that a node needs, as far as the host allows each of them."""
    for name, wanted in KERNEL_DEFAULTS.items():
        try:
            value = _other_value(name, folder)
            if value is not None:
                _file_of(name, folder).write_text(str(wanted))
                log.info("kernel setting changed", name=name, value=wanted, before=value)
        except OSError as error:
            log.warning("kernel setting cannot be changed", name=name, error=error.strerror)


def _other_value(name: str, folder: Path) -> str | None:
    """The value of a setting, if it is there and is not what a node needs. Raises OSError."""
    try:
        value = _file_of(name, folder).read_text().strip()
    except FileNotFoundError:
        return None
    return None if value == str(KERNEL_DEFAULTS[name]) else value


def _file_of(name: str, folder: Path) -> Path:
    return folder / name.replace(".", "/")
