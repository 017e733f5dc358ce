"""The disk of the node, which is full at times: what is there stays, nothing new can be made.

It is so in the places where Python reaches the kernel; who writes, and how, does not matter.
"""

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch


class Disk:
    """The folders of the agent. `is_full` may be set at any time; what others make always fits.

    `measure` says how large the disk is, and how much of it is free.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self.is_full = False
        self.measure: Callable[[], os.statvfs_result] | None = None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """While this is held, whatever the agent makes is on this disk."""
        with ExitStack() as stack:
            opened = self._refusing(io.open, _opens_for_writing)
            stack.enter_context(patch.object(io, "open", new=opened))
            stack.enter_context(patch.object(builtins, "open", new=opened))
            created = self._refusing(os.open, _may_create)
            stack.enter_context(patch.object(os, "open", new=created))
            for name in ("mkdir", "symlink", "link"):
                made = self._refusing(getattr(os, name), _always)
                stack.enter_context(patch.object(os, name, new=made))
            measured = partial(self._statvfs, os.statvfs)
            stack.enter_context(patch.object(os, "statvfs", new=measured))
            yield

    def _statvfs(self, call: Callable[[Any], os.statvfs_result], path: Any) -> os.statvfs_result:
        """The figures of the file system, of which the agent's folders have their own."""
        found = call(path)
        if self.measure is None or isinstance(path, int) or not self._has(path):
            return found
        return self.measure()

    def _has(self, path: Any) -> bool:
        return any(Path(path).is_relative_to(folder) for folder in self._folders)

    def _refusing(
        self, call: Callable[..., Any], may_make: Callable[..., bool]
    ) -> Callable[..., Any]:
        """The call, which fails where it would make something on the full disk."""

        def checked(*args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            below = {} if dir_fd is None else {"dir_fd": dir_fd}
            made = args[1] if call in (os.symlink, os.link) else args[0]
            if self.is_full and may_make(*args[1:], **options) and self._lacks(made, dir_fd):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(made))
            return call(*args, **below, **options)

        return checked

    def _lacks(self, path: Any, dir_fd: int | None) -> bool:
        """Whether something is of this disk and not there; only the agent opens folders."""
        if isinstance(path, int):
            return False
        return (self._has(path) or dir_fd is not None) and not _exists(path, dir_fd)


def _exists(path: Any, dir_fd: int | None) -> bool:
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _opens_for_writing(mode: str = "r", *_: object, **__: object) -> bool:
    return bool(set(mode) & set("wax"))


def _may_create(flags: int, *_: object, **__: object) -> bool:
    return bool(flags & os.O_CREAT)


def _always(*_: object, **__: object) -> bool:
    return True
