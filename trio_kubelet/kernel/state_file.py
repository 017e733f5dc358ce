"""Files of state, as the Go kubelet calls its checkpoints: replaced whole when something changed.

A file that is damaged is no reason to stop: it is renamed (`….damaged`), for whoever wants to know
what it was, and its owner goes on without it. Nor is a disk that is full: the log says once that
nothing can be written, and it is tried again when somebody waits for it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog
import trio

from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("files")

S = TypeVar("S")
T = TypeVar("T")

_DAMAGED_SUFFIX = ".damaged"
_MAX_BYTES = 4 << 20
"""More than the records of thousands of pods."""


def checked_name(text: str) -> str:
    """Return a name or UID as files have them; ValueError if it is none: some become paths."""
    if not is_path_part(text):
        raise ValueError("it has a name that is none")
    return text


def set_aside(path: Path, error: Exception) -> None:
    """Rename a file that is damaged, as `error` says; one that cannot be renamed stays. Blocks."""
    aside = path.with_name(f"{path.name}{_DAMAGED_SUFFIX}")
    log.warning(
        "damaged state file set aside", file=str(path), set_aside=str(aside), error=str(error)
    )
    try:
        path.replace(aside)
    except OSError as failure:
        log.warning("state file rename failed", file=str(path), error=str(failure))


class StateFile(Generic[T]):
    """The file `path`, read and written in threads of `limiter`.

    `snapshot` returns what is to be in it, which nobody changes; `printed` its text, in a thread.
    A file of more than `max_bytes` counts as damaged.
    """

    def __init__(
        self,
        path: Path,
        limiter: trio.CapacityLimiter,
        snapshot: Callable[[], T],
        printed: Callable[[T], str],
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._path = path
        self._limiter = limiter
        self._snapshot = snapshot
        self._printed = printed
        self._max_bytes = max_bytes
        self._changes = 0
        self._saved_changes = 0
        self._saving = trio.Lock()
        self._is_failing = False

    async def read(self, parsed: Callable[[str], S]) -> S | None:
        """Return the record in the file; None if there is none. One that is damaged is set aside.

        `parsed` raises ValueError for a text that is no record.
        """
        return await run_in_thread(self._read, parsed, limiter=self._limiter)

    def changed(self) -> None:
        """Write the file with the next `keep`."""
        self._changes += 1

    def repaired(self, line: str) -> None:
        """Tell of something in the file that did not fit."""
        log.warning("state file repaired", file=str(self._path), repair=line)

    async def keep(self) -> bool:
        """Return when all changes so far are on the disk, or could not be written.

        True if they are there. No pod that is to start waits for a disk that is full.
        """
        wanted = self._changes
        if self._saved_changes >= wanted:
            return True
        async with self._saving:
            if self._saved_changes < wanted:
                await self._save()
        return self._saved_changes >= wanted

    async def _save(self) -> None:
        changes = self._changes
        try:
            await run_in_thread(self._write, self._snapshot(), limiter=self._limiter)
        except OSError as error:
            if not self._is_failing:
                log.warning("state file write failed", file=str(self._path), error=str(error))
            self._is_failing = True
            return
        self._saved_changes, self._is_failing = changes, False

    def _write(self, snapshot: T) -> None:
        # Names of others, such as a device's, may have lone surrogates.
        content = self._printed(snapshot).encode(errors="replace")
        write_whole(self._path, content, folder_mode=0o750, durable=True)

    def _read(self, parsed: Callable[[str], S]) -> S | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(self._max_bytes + 1)
            if len(content) > self._max_bytes:
                raise ValueError(f"it has more than {self._max_bytes} bytes")
            return parsed(content.decode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            set_aside(self._path, error)
            return None
