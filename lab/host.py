"""What this host lets us do, found out by trying.

Containers, virtual machines and continuous integration take away different powers from root;
what `id` or `/proc/self/status` say does not tell which. Each probe does the thing itself on a
small scale and undoes it.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000

# What the CRI asks of a sandbox, the lowest value that a runtime without privileged system pods
# needs.
SANDBOX_OOM_SCORE_ADJ = -998

ENTER_NAMESPACES = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.unshare(int(sys.argv[1]))
if not failed and "mount" in sys.argv:
    private_recursively = 0x44000
    failed = libc.mount(b"none", b"/", None, private_recursively, None)
    failed = failed or libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)
sys.exit(bool(failed))
"""


def obstacles() -> tuple[str, ...]:
    """Why no real container can run here, each a reason to show; empty if nothing is in the way."""
    if sys.platform != "linux":
        return ("containers need Linux",)
    if os.geteuid() != 0:
        return ("a real container runtime needs root",)
    found = []
    if not _child_can(CLONE_NEWNS, mount=True):
        found.append("this host does not let root mount file systems")
    if not _child_can(CLONE_NEWNET):
        found.append("this host does not let root make network namespaces")
    if not os.access("/sys/fs/cgroup", os.W_OK):
        found.append("cgroups are read-only on this host")
    return tuple(found)


def can_lower_oom_score_adj() -> bool:
    """Whether a child of ours may protect itself from the OOM killer as sandboxes want to."""
    script = "import pathlib, sys; pathlib.Path('/proc/self/oom_score_adj').write_text(sys.argv[1])"
    return _python(script, str(SANDBOX_OOM_SCORE_ADJ))


def can_overlay(folder: Path) -> bool:
    """Whether overlayfs works with its upper layer in `folder`; on an overlay it often does not."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name in ("lower", "upper", "work", "merged"):
            Path(scratch, name).mkdir()
        options = ",".join(f"{name}dir={scratch}/{name}" for name in ("lower", "upper", "work"))
        merged = f"{scratch}/merged"
        if not _quiet(["mount", "-t", "overlay", "overlay", "-o", options, merged]):
            return False
        return _quiet(["umount", merged])


def cgroup_version() -> int:
    """2 where /sys/fs/cgroup is the unified hierarchy, 1 otherwise (the hybrid layout too)."""
    return 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1


def _child_can(namespaces: int, *, mount: bool = False) -> bool:
    """Whether a child may enter new namespaces and, there, mount a tmpfs over its own /mnt."""
    words = [str(namespaces), *(["mount"] if mount else [])]
    return _python(ENTER_NAMESPACES, *words)


def _python(script: str, *words: str) -> bool:
    return _quiet([sys.executable, "-c", script, *words])


def _quiet(argv: Sequence[str]) -> bool:
    try:
        return (
            subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def remove_cgroups(path: str) -> None:
    """Remove the cgroup `/name` with all below it, in every hierarchy; OSError if one is in use."""
    for root in cgroups_named(path):
        for folder, _, _ in os.walk(root, topdown=False):
            Path(folder).rmdir()


def cgroups_named(path: str, mounted: Path = Path("/sys/fs/cgroup")) -> tuple[Path, ...]:
    """The folders of the cgroup `/name`: one, or with version 1 that of each hierarchy."""
    name = path.strip("/")
    return tuple(each for each in (mounted / name, *mounted.glob(f"*/{name}")) if each.is_dir())


def thread_states(pid: int) -> str:
    """Say where each thread of a process is: `S futex_wait_queue`, `D jbd2_log_wait_commit`."""
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # It has ended.
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
            states.append(f"{state} {(thread / 'wchan').read_text()}")
    return ", ".join(states)


def detach_mounts_below(folder: Path) -> None:
    """Unmount whatever is mounted at or below `folder`, the deepest first, busy or not."""
    libc = ctypes.CDLL(None, use_errno=True)
    for point in sorted(mounts_below(folder), key=len, reverse=True):
        libc.umount2(point.encode(), 2)  # MNT_DETACH


def mounts_below(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> tuple[str, ...]:
    """Return the mount points at or below `folder`, one for each mount (some are mounted twice)."""
    inside = f"{folder}/"
    points = (
        line.split()[4].encode().decode("unicode_escape")
        for line in mountinfo.read_text().splitlines()
    )
    return tuple(point for point in points if f"{point}/".startswith(inside))
