"""Files that somebody else writes, read up to a limit: an endless one is an error as others are.

A path of the configuration may lead to a device that never ends, or to a pipe into which nobody
writes. Everything here blocks, a pipe for some seconds at most.
"""

import errno
import os
import select
from pathlib import Path

WAIT_MILLISECONDS = 5000
"""For what a pipe holds next, as that of a shell's `<(…)`."""
_PIECE_BYTES = 1 << 20


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a file. Raises OSError: EFBIG if it is longer, ETIMEDOUT for a pipe that is silent."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        return _read(descriptor, path, max_bytes)
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path, max_bytes: int) -> bytes:
    found = bytearray()
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while True:
        if not ready.poll(WAIT_MILLISECONDS):
            raise OSError(errno.ETIMEDOUT, "nothing can be read from it", str(path))
        piece = os.read(descriptor, _PIECE_BYTES)
        if not piece:
            return bytes(found)
        found += piece
        if len(found) > max_bytes:
            raise OSError(errno.EFBIG, f"it has more than {max_bytes} bytes", str(path))
