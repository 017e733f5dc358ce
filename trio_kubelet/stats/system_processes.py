"""Which processes the node's own work is done by: this one, and the container runtime."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress

_CREDENTIALS = struct.Struct("3i")
ASK_AGAIN_SECONDS = 300.0


class SystemProcesses:
    """Finds a process of each system container.

    `runtime_socket` is where the runtime listens, empty for one that has no process of its own.
    """

    __slots__ = ("_asked_at", "_runtime", "_socket")

    def __init__(self, runtime_socket: str) -> None:
        self._socket = runtime_socket
        self._runtime: int | None = None
        self._asked_at = float("-inf")

    def find(self) -> Mapping[str, int]:
        """Return process ids by the names that system containers have. Blocks."""
        found = {"kubelet": os.getpid()}
        now = time.monotonic()
        if self._socket and (self._runtime is None or now > self._asked_at + ASK_AGAIN_SECONDS):
            self._runtime, self._asked_at = listening_process(self._socket), now
        if self._runtime is not None:
            found["runtime"] = self._runtime
        return found


def listening_process(path: str) -> int | None:
    """The process that listens on a unix socket; None if nobody can be connected to at once."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        client.connect(path)
        told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(told)[0]
        return pid or None
    return None
