"""Processes and cgroups of runs that were killed: how they are known, and how to be rid of them.

What starts programs that outlive it, an `Agent` or a run of tests, marks their environment with
its own identity: namespace of process ids, process id, time of its start. A process whose mark
names an owner that is gone is an orphan. cgroups have the owner's process id in their names.
"""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from lab.host import remove_cgroups
from lab.processes import alive, wait_until

MARK = "TRIO_KUBELET_LAB_OWNER"
CGROUPS = Path("/sys/fs/cgroup")
KILL_DEADLINE_SECONDS = 10

_OWNED = re.compile(r"trio-kubelet-of-(?P<pid>[0-9]+)-.+")


def marked(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that this process owns."""
    return {**environment, MARK: _identity(os.getpid())}


def cgroup_of_ours(name: str) -> str:
    """The name of a cgroup, at the top of the hierarchies, that nobody needs after this process."""
    return f"trio-kubelet-of-{os.getpid()}-{name}"


def sweep() -> None:
    """Kill the programs whose owner is gone, and remove the cgroups of owners that are."""
    orphans = tuple(_orphans())
    for pid in orphans:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(map(alive, orphans)),
        deadline_seconds=KILL_DEADLINE_SECONDS,
        else_say=lambda: f"processes {orphans} do not end",
    )
    for name in _cgroups_of_nobody():
        # One that is in use is of another namespace, or goes with the next sweep.
        with suppress(OSError):
            remove_cgroups(name)


def _orphans() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (mark := _mark_of(Path(entry.path))):
            namespace, pid, _ = mark.split(":")
            is_judged = namespace == _namespace() and int(entry.name) != os.getpid()
            if is_judged and _identity(int(pid)) != mark:
                yield int(entry.name)


def _mark_of(process: Path) -> str:
    """The mark in a process's environment; empty if it has none, or has ended."""
    try:
        variables = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    found = (value for name, _, value in (v.partition("=") for v in variables) if name == MARK)
    return next(found, "")


def _identity(pid: int) -> str:
    """What tells a process from all others that are, or were, on this host; empty if it ended."""
    if not alive(pid):
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{_namespace()}:{pid}:{fields[19]}"


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _cgroups_of_nobody() -> set[str]:
    folders = (*CGROUPS.glob("trio-kubelet-of-*"), *CGROUPS.glob("*/trio-kubelet-of-*"))
    owners = {path.name: _OWNED.fullmatch(path.name) for path in folders}
    return {name for name, owner in owners.items() if owner and not alive(int(owner["pid"]))}
