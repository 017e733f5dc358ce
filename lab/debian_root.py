"""A root folder of Debian packages, installed there and nowhere else."""

import os
from collections.abc import Iterable
from pathlib import Path

from lab import UnavailableError
from lab.packages import Packages
from lab.processes import run

DEADLINE_SECONDS = 3600
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def make(root: Path, suite: str, names: Iterable[str], packages: Packages) -> None:
    """Install the packages, what they depend on, and the base of the suite; blocks for minutes.

    UnavailableError on another distribution than Debian; LabError if it fails.
    """
    if packages.distribution.id != "debian":
        raise UnavailableError("a root of Debian packages comes from a mirror of Debian")
    unpacked = packages.unpacked("mmdebstrap")
    lines = [line for source in packages.sources(suite) for line in source.lines()]
    words: list[str | Path] = [
        *("perl", unpacked / "usr/bin/mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
        *(f"--include={','.join(names)}", '--aptopt=Apt::Install-Recommends "false"'),
        *("--dpkgopt=force-unsafe-io", *(f"--dpkgopt=path-exclude={each}" for each in LEFT_OUT)),
    ]
    run(
        [*words, suite, root, *lines],
        env={**os.environ, "PATH": f"{unpacked / 'usr/bin'}:{os.environ['PATH']}"},
        deadline_seconds=DEADLINE_SECONDS,
    )
