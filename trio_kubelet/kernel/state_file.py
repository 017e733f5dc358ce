"""Files of state, as the Go kubelet calls its checkpoints: replaced whole when something changed.

A file that is damaged is no reason to stop: it is renamed (`….damaged`), for whoever wants to know
what it was, and its owner goes on without it. One that cannot be read now (no file descriptors, an
error of the disk) is not damaged: it is read again until it can be. Nor is a disk that is full a
reason to stop: the log says once that nothing can be written, and it is tried again when somebody
waits for it.
"""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import structlog
import trio

from state_machines.backoff import BackoffPolicy
from trio_kubelet.foreign_text import is_path_part
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("files")

S = TypeVar("S")
T = TypeVar("T")

_DAMAGED_SUFFIX = ".damaged"
MAX_BYTES = 64 << 20
"""More than the records of thousands of pods."""
RETRY = BackoffPolicy(initial_seconds=0.5, cap_seconds=30.0)
_LASTING = (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
"""Errors of what is no file. Any other may be over the next time."""


def is_passing(error: OSError) -> bool:
    """True if a file that cannot be read may be sound."""
    return error.errno not in _LASTING


def checked_name(text: str) -> str:
    """Return a name or UID as files have them; ValueError if it is none: some become paths."""
    if not is_path_part(text):
        raise ValueError("it has a name that is none")
    return text


def set_aside(path: Path, error: Exception) -> None:
    """Rename a file that is damaged, as `error` says; one that cannot be renamed stays. Blocks."""
    aside = _aside(path)
    log.warning(
        "damaged state file set aside", file=str(path), set_aside=str(aside), error=str(error)
    )
    try:
        path.replace(aside)
    except OSError as failure:
        log.warning("state file rename failed", file=str(path), error=str(failure))


async def read_when_possible(path: Path, read: Callable[[], S], limiter: trio.CapacityLimiter) -> S:
    """Return what `read` returns, in a thread; while it raises OSError for `path`, try it again."""
    retries = Retries(RETRY)
    while True:
        try:
            return await run_in_thread(read, limiter=limiter)
        except OSError as error:
            words = "state file cannot be read, will retry"
            retries.warn(log, words, file=str(path), error=str(error))
            await retries.wait()


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}{_DAMAGED_SUFFIX}")


class StateFile(Generic[T]):
    """The file `path`, read and written in threads of `limiter`.

    `snapshot` returns what is to be in it, which nobody changes; `printed` its text, in a thread.
    A file of more than MAX_BYTES counts as damaged, and none is written that has more.
    """

    def __init__(
        self,
        path: Path,
        limiter: trio.CapacityLimiter,
        snapshot: Callable[[], T],
        printed: Callable[[T], str],
    ) -> None:
        self._path = path
        self._limiter = limiter
        self._snapshot = snapshot
        self._printed = printed
        self._changes = 0
        self._saved_changes = 0
        self._saving = trio.Lock()
        self._is_failing = False

    async def read(self, parsed: Callable[[str], S]) -> S | None:
        """Return the record in the file; None if there is none. One that is damaged is set aside.

        `parsed` raises ValueError for a text that is no record. Waits for a file that cannot be
        read now: its owner must not go on as if there was none.
        """
        return await read_when_possible(self._path, partial(self._read, parsed), self._limiter)

    def changed(self) -> None:
        """Write the file with the next `keep`."""
        self._changes += 1

    def repaired(self, line: str) -> None:
        """Tell of something in the file that did not fit."""
        log.warning("state file repaired", file=str(self._path), repair=line)

    def keep_copy(self, text: str) -> None:
        """Keep what a file had of which not all was usable, as one that is set aside. Blocks."""
        aside = _aside(self._path)
        try:
            write_whole(aside, text.encode(errors="replace"), durable=True)
        except OSError as error:
            log.warning("damaged state file not kept", set_aside=str(aside), error=str(error))

    async def damaged_at_ns(self) -> int:
        """The time at which a damaged file was set aside last; 0 if none was, or it is gone."""
        return await run_in_thread(self._damaged_at_ns, limiter=self._limiter)

    def _damaged_at_ns(self) -> int:
        try:
            # Renaming it has changed its status; its content is of an earlier time.
            return _aside(self._path).lstat().st_ctime_ns
        except OSError:
            return 0

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
        except (OSError, ValueError) as error:
            if not self._is_failing:
                log.warning("state file write failed", file=str(self._path), error=str(error))
            self._is_failing = True
            return
        self._saved_changes, self._is_failing = changes, False

    def _write(self, snapshot: T) -> None:
        # Names of others, such as a device's, may have lone surrogates.
        content = self._printed(snapshot).encode(errors="replace")
        if len(content) > MAX_BYTES:
            raise ValueError(f"it would have {len(content)} bytes, must have at most {MAX_BYTES}")
        write_whole(self._path, content, folder_mode=0o750, durable=True)

    def _read(self, parsed: Callable[[str], S]) -> S | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            return parsed(content.decode())
        except FileNotFoundError:
            return None
        except ValueError as error:
            set_aside(self._path, error)
        except OSError as error:
            if is_passing(error):
                raise
            set_aside(self._path, error)
        return None
