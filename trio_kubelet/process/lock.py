"""The lock file: one agent at a time (flags --lock-file and --exit-on-lock-contention).

The lock is an exclusive flock(2), held as long as the process lives.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockHeld(Exception):  # noqa: N818 - it says what is the case
    """Another process holds the lock."""


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock. Raises LockHeld, or OSError when the file cannot be made."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise LockHeld(f"{path} is locked by another process") from None
    finally:
        os.close(descriptor)
