"""Power failures: what a disk may have of a folder at each moment, if the machine loses its power.

The kernel promises little of what was not synced. A file that was written may be empty, a name that
was made, replaced or removed may be as it was before, and either may have reached the disk all the
same. `PowerFailures` notes, before and after each call that changes the folder, what would be there
then: with nothing of what was not synced, with the names but not the contents, and with all of it.
"""

import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import frozen

CHANGES = ("open", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")

Content = Mapping[str, bytes]
"""The files of a folder by their paths in it."""


@frozen
class Failure:
    """The files that are left if the power fails at a moment.

    `survived` says how much of what was not synced is left: `nothing`, the `names`, `all`.
    """

    moment: int
    survived: str
    files: Content

    def restore(self, folder: Path) -> None:
        """Make a folder as the next boot finds it."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class PowerFailures:
    """The failures that may hit a folder while code changes it, in the order of their moments."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers = itertools.count()
        self._ids: dict[int, int] = {}
        """A number for each file and folder: those of the file system are used again."""
        self._folders: set[int] = set()
        self._synced: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        """The names in a folder that are on the disk."""
        self._moment = 0
        self.found: list[Failure] = []
        self._sync_all()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """While the code runs whose failures are wanted."""
        with ExitStack() as stack:
            for name in CHANGES:
                watched = self._watched(name, getattr(os, name))
                stack.enter_context(patch.object(os, name, new=watched))
            yield
        self._note()

    @property
    def moment(self) -> int:
        """How many changes there were."""
        return self._moment

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self._note()
            result = call(*args, **options)
            if name == "fsync":
                self._sync(args[0])
            self._note()
            return result

        return watched

    def _id(self, path: Path) -> int:
        number = path.lstat().st_ino
        if number not in self._ids:
            self._ids[number] = next(self._numbers)
            if path.is_dir():
                self._folders.add(self._ids[number])
        return self._ids[number]

    def _sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not path.is_relative_to(self._root):
            return
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._names[self._id(path)] = {each.name: self._id(each) for each in path.iterdir()}
        else:
            self._synced[self._id(path)] = path.read_bytes()

    def _sync_all(self) -> None:
        """What is there at the beginning is on the disk."""
        for path in (self._root, *self._root.rglob("*")):
            if path.is_dir():
                self._names[self._id(path)] = {each.name: self._id(each) for each in path.iterdir()}
            else:
                self._synced[self._id(path)] = path.read_bytes()

    def _note(self) -> None:
        self._moment += 1
        there = {path: self._id(path) for path in self._root.rglob("*")}
        self._ids = {path.lstat().st_ino: number for path, number in there.items()} | {
            self._root.lstat().st_ino: self._id(self._root)
        }
        files = {path: number for path, number in there.items() if path.is_file()}
        every = {str(p.relative_to(self._root)): p.read_bytes() for p in files}
        names = {str(p.relative_to(self._root)): self._synced.get(n, b"") for p, n in files.items()}
        for survived, content in (
            ("nothing", dict(self._on_disk(self._id(self._root), ""))),
            ("names", names),
            ("all", every),
        ):
            self.found.append(Failure(self._moment, survived, content))

    def _on_disk(self, folder: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name, number in self._names.get(folder, {}).items():
            if number in self._folders:
                yield from self._on_disk(number, f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", self._synced.get(number, b"")
