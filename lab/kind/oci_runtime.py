"""An OCI runtime for hosts that lack powers Docker takes for granted: it asks runc for less.

Docker gives a privileged container all capabilities that the kernel knows, and protects it from
the OOM killer as it likes. Where this host's root lacks some of them, runc would refuse. So of
what a container or a command in it is to have, this leaves what can be had, then becomes runc.
The first argument is runc; it is a program of its own, which needs nothing but Python.
"""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
LOWEST_SCORE = Path("/proc/self/oom_score_adj")
# From linux/capability.h, by number.
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)


def main(argv: Sequence[str]) -> None:
    """Reduce what the command line refers to, and become runc."""
    runc, *words = argv
    allowed = bounding_set(STATUS.read_text())
    lowest_score = int(LOWEST_SCORE.read_text())
    for file, is_bundle in described(words):
        content = json.loads(file.read_text())
        process = content.get("process", {}) if is_bundle else content
        reduce_process(process, allowed, lowest_score)
        file.write_text(json.dumps(content))
    os.execv(runc, [runc, *words])


def bounding_set(status: str) -> frozenset[str]:
    """Names of the capabilities in the line CapBnd of /proc/PID/status."""
    (line,) = (line for line in status.splitlines() if line.startswith("CapBnd:"))
    mask = int(line.split()[1], 16)
    return frozenset(f"CAP_{name}" for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1)


def described(words: Sequence[str]) -> tuple[tuple[Path, bool], ...]:
    """The file that a command line describes a process in, and whether it is a whole bundle's."""
    options = dict(itertools.pairwise(words))
    if "create" in words and "--bundle" in options:
        return ((Path(options["--bundle"], "config.json"), True),)
    if "exec" in words and "--process" in options:
        return ((Path(options["--process"]), False),)
    return ()


def reduce_process(process: dict[str, Any], allowed: frozenset[str], lowest_score: int) -> None:
    """Take from a process of the OCI what may not be given to it."""
    sets = process.get("capabilities") or {}
    process["capabilities"] = {
        name: [each for each in wanted or () if each in allowed] for name, wanted in sets.items()
    }
    if process.get("oomScoreAdj", lowest_score) < lowest_score:
        del process["oomScoreAdj"]


if __name__ == "__main__":
    main(sys.argv[1:])
