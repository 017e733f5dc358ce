"""The limits of the agent's own process: open files, and when the kernel may kill it.

Some hosts deny one or the other. That is said once, and the agent goes on as the Go kubelet
does.
"""

import resource
from pathlib import Path

import structlog

log = structlog.get_logger("process")

OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")


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
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.warning("open files limit increase failed", wanted=wanted, set=hard, error=str(error))


def _at_least(limit: int, wanted: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= wanted


def set_oom_score(score: int, file: Path = OOM_SCORE_FILE) -> None:
    """Set the agent's OOM score adjustment (oomScoreAdj, -1000 to 1000) if the host allows."""
    try:
        file.write_text(str(score))
    except OSError as error:
        log.warning("OOM score adjustment failed", wanted=score, error=error.strerror)
