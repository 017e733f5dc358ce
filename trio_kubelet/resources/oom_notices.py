"""Being told of OOM kills on cgroup v1: an eventfd on the container's own `memory.oom_control`.

On v1 nothing of a container's cgroup outlives it but the notices that were asked for. So the
memory cgroup is made, as the runtime would make it, before the container is started. The kernel
also gives a notice when the cgroup goes, to each eventfd: a second one, on a threshold of memory
that nobody reaches, is told of nothing else and tells the two apart.
"""

import contextlib
import os
from pathlib import Path

import trio
from attrs import define

from trio_kubelet.tasks.threads import run_in_thread

_FOLDER_MODE = 0o755
_NEVER = "-1"
_GONE_SECONDS = 2.0
_FLAGS = os.EFD_NONBLOCK | os.EFD_CLOEXEC


@define
class OomNotice:
    """The notices of one container. `made_at` is trio's clock; `close` may be repeated."""

    folder: Path
    made_at: float
    _kills: int
    _removal: int
    _noticed: int = 0
    _closed: bool = False

    @classmethod
    def ask(cls, folder: Path, made_at: float) -> "OomNotice":
        """Make the container's memory cgroup and ask for notices. Blocks. Raises OSError."""
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        with contextlib.ExitStack() as undo:
            kills, removal = os.eventfd(0, _FLAGS), os.eventfd(0, _FLAGS)
            undo.callback(os.close, kills)
            undo.callback(os.close, removal)
            # The kernel tells of the removal in the opposite order: `removal` last.
            _register(folder, "memory.usage_in_bytes", removal, _NEVER)
            _register(folder, "memory.oom_control", kills)
            undo.pop_all()
        return cls(folder, made_at, kills, removal)

    async def was_killed(self) -> bool:
        """True if the OOM killer struck there. Where it is not known yet this waits, for 2 s.

        To be asked once, after the container has ended. Cancelled, it may be asked again.
        """
        self._noticed += _read(self._kills)
        if self._noticed == 1 and not await run_in_thread(self.folder.exists):
            with trio.move_on_after(_GONE_SECONDS):
                await trio.lowlevel.wait_readable(self._removal)
            self._noticed += _read(self._kills)
            return self._noticed > 1
        return self._noticed > 0

    def close(self) -> None:
        """Ask for no more, and remove a cgroup that was not used. Blocks."""
        if self._closed:
            return
        self._closed = True
        os.close(self._kills)
        os.close(self._removal)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _register(folder: Path, name: str, eventfd: int, *words: str) -> None:
    with (folder / name).open("rb") as file:
        request = " ".join((str(eventfd), str(file.fileno()), *words))
        (folder / "cgroup.event_control").write_text(request)


def _read(eventfd: int) -> int:
    try:
        return os.eventfd_read(eventfd)
    except BlockingIOError:
        return 0
