"""File systems in memory: how they are mounted, and how to see that one is there."""

import os
from pathlib import Path

from trio_kubelet.volumes.mount import mount

_NOSWAP_SINCE = (6, 4)


def memory_options(size_bytes: int) -> str:
    """Return the mount options of a file system in memory, kept out of the swap if possible."""
    options = f"size={size_bytes}"
    return f"{options},noswap" if keeps_out_of_swap() else options


def keeps_out_of_swap() -> bool:
    """Return whether the kernel can keep a file system in memory out of the swap."""
    return _kernel_version() >= _NOSWAP_SINCE


def mount_memory(folder: Path, size_bytes: int) -> None:
    """Mount a file system in memory. Blocks; raises OSError."""
    mount("tmpfs", folder, "tmpfs", options=memory_options(size_bytes))


def has_own_file_system(folder: Path) -> bool:
    """Return whether another file system than that of its parent is mounted on a folder."""
    return folder.stat().st_dev != folder.parent.stat().st_dev


def _kernel_version() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int(minor.partition("-")[0])
