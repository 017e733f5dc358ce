"""What a power failure leaves of the agent's folder: what was synced, and by chance of the rest.

A file that was not synced may be empty or as it was when it was; a name that was made, replaced
or removed may be as it was when its folder was synced. Nothing of a folder ever reaches the disk by
itself. It is the model of `tests/power_failures.py`, which notes every moment; here only the calls
are watched that sync or remove something, so that a day takes no longer.
"""

import io
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import define, field, frozen

# Those of the system, before anything is patched: what a boot finds fits on a full disk.
_open, _mkdir, _symlink, _lstat = io.open, os.mkdir, os.symlink, os.lstat

_FOLDER, _FILE, _LINK = stat.S_IFDIR | 0o750, stat.S_IFREG | 0o600, stat.S_IFLNK | 0o777


class Survivors(StrEnum):
    """How much is left of what was not synced."""

    NOTHING = "nothing"
    NAMES = "names"
    SOME = "some"
    ALL = "all"


@define(eq=False)
class _Node:
    """A file, folder or symlink, as far as it is on the disk; a file's content may be unknown."""

    mode: int
    content: bytes = b""
    """Of a file what was synced, of a symlink its target."""
    names: Mapping[str, "_Node"] = field(factory=dict)
    """Of a folder."""


@frozen
class _Left:
    """Something that the next boot finds; content as in `_Node`."""

    mode: int
    content: bytes = b""


class Power:
    """The power of the machine whose agent has that folder. It fails if somebody says so."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._chance = chance
        self._nodes: dict[int, _Node] = {}
        """What is there now and was synced itself, or its folder was: by inode."""
        self._left: Mapping[str, _Left] | None = None
        self._survivors = Survivors.ALL
        self._writes_left = 0
        self._then: Callable[[], None] = lambda: None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this is held, it is known what the agent has synced."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(os, "fsync", new=self._fsync))
            for name in ("replace", "rename"):
                renamed = self._renaming(getattr(os, name), counts=name == "replace")
                stack.enter_context(patch.object(os, name, new=renamed))
            for name in ("unlink", "rmdir"):
                removed = self._removing(getattr(os, name))
                stack.enter_context(patch.object(os, name, new=removed))
            yield

    def at_write(self, number: int, then: Callable[[], None]) -> None:
        """Do something just before the sync or replacement of that number, counted from now.

        Zero: nothing.
        """
        self._writes_left, self._then = number, then

    @property
    def is_off(self) -> bool:
        """Whether it has failed and is not back yet."""
        return self._left is not None

    def fail(self, survivors: Survivors | None = None) -> Survivors:
        """Decide what is left, and how much of what was not synced. What is written now is lost."""
        self._survivors = survivors or self._chance.choice(list(Survivors))
        top = self._nodes.get(_inode(self._folder), _Node(_FOLDER))
        self._left = dict(self._survivors_in(self._folder, top, ""))
        return self._survivors

    def come_back(self) -> None:
        """Make the folder as the boot finds it. The agent has ended."""
        assert self._left is not None, "the power has failed"
        left, self._left = self._left, None
        shutil.rmtree(self._folder, ignore_errors=True)
        _mkdir(self._folder, 0o750)
        for name, found in left.items():
            path = self._folder / name
            if stat.S_ISDIR(found.mode):
                _mkdir(path)
            elif stat.S_ISLNK(found.mode):
                _symlink(os.fsdecode(found.content), path)
            else:
                with _open(path, "wb") as file:
                    file.write(found.content)
            if not stat.S_ISLNK(found.mode):
                path.chmod(stat.S_IMODE(found.mode))
        self._nodes.clear()
        self._note_all(self._folder, _FOLDER, left)

    # What is on the disk

    def _fsync(self, descriptor: int) -> None:
        """Note what the disk has from now on; there is no need to wait for a real one."""
        self._count()
        found = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        node = self._nodes.setdefault(found.st_ino, _Node(found.st_mode))
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(path) as entries:
                node.names = {entry.name: self._named(entry) for entry in entries}
        else:
            node.content = _read(path)

    def _named(self, entry: "os.DirEntry[str]") -> _Node:
        known = self._nodes.get(entry.inode())
        if known is None:
            known = self._nodes[entry.inode()] = _Node(_FILE)
            if entry.is_symlink():
                known.mode, known.content = _LINK, os.fsencode(Path(entry).readlink())
            elif entry.is_dir():
                known.mode = _FOLDER
        return known

    def _note_all(self, path: Path, mode: int, left: Mapping[str, _Left]) -> _Node:
        """What a boot has found is on the disk."""
        node = self._nodes[_inode(path)] = _Node(mode)
        if stat.S_ISDIR(mode):
            inside = {each: str(each.relative_to(self._folder)) for each in path.iterdir()}
            node.names = {
                each.name: self._note_all(each, left[name].mode, left)
                for each, name in inside.items()
            }
        else:
            node.content = left[str(path.relative_to(self._folder))].content
        return node

    def _renaming(self, call: Callable[..., None], *, counts: bool) -> Callable[..., None]:
        def rename(
            source: Any,
            target: Any,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
        ) -> None:
            if counts:
                self._count()
            self._forget(target, dst_dir_fd)
            call(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        return rename

    def _removing(self, call: Callable[..., None]) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            self._forget(path, dir_fd)
            call(path, dir_fd=dir_fd)

        return remove

    def _forget(self, path: Any, dir_fd: int | None) -> None:
        """Another file may have the inode from now on; folders that name the old one have it."""
        try:
            inode = _lstat(path, dir_fd=dir_fd).st_ino
        except OSError:
            return
        self._nodes.pop(inode, None)

    def _count(self) -> None:
        if self._writes_left > 0:
            self._writes_left -= 1
            if self._writes_left == 0:
                self._then()

    # What a failure leaves

    def _survivors_in(
        self, folder: Path | None, node: _Node, inside: str
    ) -> Iterator[tuple[str, _Left]]:
        """What is left in a folder, by its path below the agent's; None if it is not there now."""
        here = _entries(folder)
        for name in sorted({*here, *node.names}):
            entry, synced = here.get(name), node.names.get(name)
            known = self._nodes.get(entry.inode()) if entry is not None else None
            is_as_synced = synced is not None and synced is known
            if not is_as_synced and not self._is_left(Survivors.NAMES):
                entry, known = None, synced
            if entry is None and known is None:
                continue
            yield from self._survivor(entry, known, f"{inside}{name}")

    def _survivor(
        self, entry: "os.DirEntry[str] | None", known: _Node | None, name: str
    ) -> Iterator[tuple[str, _Left]]:
        path = Path(entry) if entry is not None else None
        mode = path.lstat().st_mode if path is not None else known.mode if known else _FILE
        known = known or _Node(mode)
        if stat.S_ISDIR(mode):
            yield name, _Left(mode)
            yield from self._survivors_in(path, known, f"{name}/")
        elif stat.S_ISLNK(mode):
            target = os.fsencode(path.readlink()) if path is not None else known.content
            yield name, _Left(mode, target)
        else:
            content = _read(path) if path is not None else known.content
            if content != known.content and not self._is_left(Survivors.ALL):
                content = known.content
            yield name, _Left(mode, content)

    def _is_left(self, least: Survivors) -> bool:
        """True if one change that was not synced is left."""
        if self._survivors is Survivors.SOME:
            return self._chance.random() < 0.5
        return self._survivors in (least, Survivors.ALL)


def _inode(path: Path) -> int:
    try:
        return _lstat(path).st_ino
    except OSError:
        return 0


def _entries(folder: Path | None) -> "Mapping[str, os.DirEntry[str]]":
    if folder is None or not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry for entry in entries}


def _read(path: Path) -> bytes:
    with _open(path, "rb") as file:
        content: bytes = file.read()
    return content
