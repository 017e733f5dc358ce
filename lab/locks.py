"""Locks between processes: who changes what all share does so alone."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import LabError


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the lock with this name, whose folder is made; others wait. Not to be held twice.

    LabError if it cannot be made.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise LabError(f"no lock for what processes share: {error}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
