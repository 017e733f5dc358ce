"""The limits of the agent's own process: open files, and when the kernel may kill it.

Some hosts deny one or the other. That is said once, and the agent goes on as far as the Go
kubelet would.
"""

import resource
from pathlib import Path

import structlog

log = structlog.get_logger("process")


def raise_open_files_limit(wanted: int) -> None:
    """Raise the limit of open files (maxOpenFiles), as far as the host allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
    except (ValueError, OSError):
        reached = max(soft, min(wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
        log.warning("limit of open files not reached", wanted=wanted, set=reached)


def lower_oom_score(score: int, path: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Set the agent's OOM score adjustment (oomScoreAdj, -1000 to 1000)."""
    try:
        path.write_text(str(score))
    except OSError as error:
        log.warning("OOM score not set", wanted=score, error=error.strerror)
