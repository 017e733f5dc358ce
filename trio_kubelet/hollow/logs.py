"""Writes what containers print, in CRI's log format, and their termination messages.

A line is `<RFC 3339 time with nanoseconds> <stream> <P or F> <text>`; every line here is whole
(F). Files are appended to in a worker thread with a limiter of its own; each write opens the
file anew, so that a rotated log continues in a fresh one without a reopen.
"""

from datetime import UTC, datetime
from pathlib import Path

import trio

from trio_kubelet.hollow.behaviour import LogLine
from trio_kubelet.hollow.records import HollowContainer
from trio_kubelet.runtime.config.names import TERMINATION_MESSAGE_PATH_ANNOTATION
from trio_kubelet.tasks.clock import Clock


class LogWriter:
    """Writes logs and termination messages to the paths that the containers were given."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limiter = trio.CapacityLimiter(4)

    async def create(self, container: HollowContainer) -> None:
        """Make the empty log, as a runtime does when it starts the container."""
        if container.log_path:
            await self._append(container.log_path, "")

    async def write(self, container: HollowContainer, line: LogLine) -> None:
        """Append one line to the container's log, if it has one."""
        if container.log_path:
            text = f"{_timestamp(self._clock.now_ns())} {line.stream} F {line.text}\n"
            await self._append(container.log_path, text)

    async def write_termination_message(self, container: HollowContainer) -> None:
        """Append the behaviour's message to the file that the agent mounted for it."""
        path = container.config.annotations.get(TERMINATION_MESSAGE_PATH_ANNOTATION)
        message = container.behaviour.termination_message
        for mount in container.config.mounts:
            if message and mount.container_path == path:
                await self._append(mount.host_path, message)

    async def _append(self, path: str, text: str) -> None:
        await trio.to_thread.run_sync(_append, Path(path), text, limiter=self._limiter)


def _append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _timestamp(now_ns: int) -> str:
    seconds, nanoseconds = divmod(now_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
