"""Run a program to its end, and see which processes are there.

Programs of the lab are small and quick; what runs for long (containerd, the registry) is started
by its own class, with a log file. Every wait has a deadline.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lab import LabError

POLL_SECONDS = 0.02
# A look may cost what is waited for its processor, so the longer it takes, the rarer they are.
RESTS_PER_LOOK, REST_SECONDS = 3, 1.0


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
    called: str = "",
    deadline_seconds: float = 60,
) -> str:
    """Return what the program wrote to stdout; LabError has the last words of one that failed.

    `called` is what messages call it, if not by its name alone.
    """
    name = called or Path(argv[0]).name
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            env=None if env is None else dict(env),
            cwd=cwd,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_seconds,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(f"{name}: not found") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{name}: no end after {deadline_seconds:g} s") from error
    if done.returncode != 0:
        raise LabError(f"{name}: {last_words(done.stderr or done.stdout)}")
    return done.stdout


def last_words(text: str, lines: int = 3) -> str:
    """Return the last lines of a program's output, as one line."""
    return " / ".join(text.strip().splitlines()[-lines:]) or "failed without a word"


def wait_until(
    holds: Callable[[], bool],
    *,
    deadline_seconds: float,
    else_say: Callable[[], str],
) -> None:
    """Return as soon as `holds()`; LabError with `else_say()` when the deadline passes first."""
    end = time.monotonic() + deadline_seconds
    while True:
        begun = time.monotonic()
        if holds():
            return
        now = time.monotonic()
        if now > end:
            raise LabError(else_say())
        rest = min(RESTS_PER_LOOK * (now - begun), REST_SECONDS)
        time.sleep(max(POLL_SECONDS, rest))


def command_lines() -> Iterator[tuple[int, tuple[str, ...]]]:
    """List (pid, argv) of every process that has a command line."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if words:
            yield int(entry.name), tuple(words.rstrip("\0").split("\0"))


def rooted_below(folder: Path) -> tuple[int, ...]:
    """List the processes whose root file system is an overlay or a folder below `folder`."""
    inside = re.compile(rf"\S+ \S+ \S+ (\S* / .*[=:,]|){re.escape(str(folder))}/")
    return tuple(
        int(entry.name)
        for entry in os.scandir("/proc")
        if entry.name.isdigit() and inside.match(_root_mount(Path(entry.path)))
    )


def _root_mount(process: Path) -> str:
    """Return the process's line of mountinfo for `/`; empty if it has ended."""
    try:
        lines = (process / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.split()[4] == "/"), "")


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
