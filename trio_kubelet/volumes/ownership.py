"""fsGroup: the files of a volume that outlives the pod are given to the pod's group.

Everything in the volume is visited, the root last, so that a root that fits says that all below it
does (`fsGroupChangePolicy: OnRootMismatch`). A large volume takes minutes: the walk gives its
thread back now and then, ends with the pod, and an event says how far it is. A container of
another pod may exchange what is in the volume meanwhile: no symlink is followed and no mount point
crossed, and there is one walk for a volume at a time.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from functools import partial
from itertools import islice
from pathlib import Path

import trio
from attrs import define, field, frozen

from trio_kubelet.k8s import Pod, PodFSGroupChangePolicy
from trio_kubelet.tasks.concurrency import run_concurrently
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.keyed_locks import KeyedLocks
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.safe_open import FILES_IN_A_PIECE, enter_folder, folder_identity

FIRST_EVENT_SECONDS = 30.0
NEXT_EVENT_SECONDS = 60.0
_ADVICE = (
    "is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/"
    "tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)

FOLDERS_AT_ONCE = 20_000
"""Names of folders in one folder that are kept; a container may make millions."""

_WRITE, _ENTER = 0o660, 0o110


@frozen(kw_only=True)
class GroupAccess:
    """The group that a volume is given to, which may read and write there."""

    group: int

    def mode(self, mode: int) -> int:
        """Return the permissions of a file or folder that the group can use, by those it has."""
        wanted = stat.S_IMODE(mode) | _WRITE
        return wanted | stat.S_ISGID | _ENTER if stat.S_ISDIR(mode) else wanted

    def fits(self, root: os.stat_result) -> bool:
        """True if the root of a volume is as this access wants it."""
        return root.st_gid == self.group and self.mode(root.st_mode) == stat.S_IMODE(root.st_mode)


@define(eq=False)
class VolumeOwnership:
    """Gives volumes to the groups of pods. Without a `recorder` no event tells of long walks."""

    _threads: FairLimiter
    _recorder: EventRecorder | None = None
    _walks: KeyedLocks[Path] = field(init=False, factory=KeyedLocks)

    async def give(self, pod: Pod, root: Path, shown: str) -> None:
        """Give all that is at and below `root` to the pod's fsGroup, if it has one.

        `shown` is the volume's name in events. Raises OSError. Cancelled, it leaves the rest; the
        root does not fit then.
        """
        context = pod.spec.security_context
        if context is None or context.fs_group is None:
            return
        access = GroupAccess(group=context.fs_group)
        async with self._walks.held(root):
            if context.fs_group_change_policy == PodFSGroupChangePolicy.ON_ROOT_MISMATCH:
                look = partial(os.stat, root)
                if access.fits(await self._threads.share_of(pod.metadata).run_sync(look)):
                    return
            await self._walk(pod, root, shown, access)

    async def _walk(self, pod: Pod, root: Path, shown: str, access: GroupAccess) -> None:
        share, visited = self._threads.share_of(pod.metadata), [0]

        async def walk() -> None:
            with contextlib.closing(_changes(root, access, visited)) as steps:
                pieces = islice(steps, FILES_IN_A_PIECE - 1, None, FILES_IN_A_PIECE)
                while await share.run_sync(lambda: next(pieces, True)) is None:
                    pass
            rest.cancel()

        async def tell() -> None:
            await trio.sleep(FIRST_EVENT_SECONDS)
            self._tell(pod, f"Setting volume ownership for {shown} {_ADVICE}")
            while True:
                await trio.sleep(NEXT_EVENT_SECONDS)
                words = f"Setting volume ownership for {shown}, processed {visited[0]} files."
                self._tell(pod, words)

        with trio.CancelScope() as rest:
            await run_concurrently(walk, tell)

    def _tell(self, pod: Pod, message: str) -> None:
        if self._recorder is not None:
            reason = "VolumePermissionChangeInProgress"
            self._recorder.pod(pod, EventType.WARNING, reason, message)


@define
class _Folders:
    """Folders in a folder that are still to be visited, by their names: the first is the last.

    `has_more`: there may be others, whose names come after `newest`.
    """

    names: list[str]
    newest: str
    has_more: bool


def _changes(root: Path, access: GroupAccess, visited: list[int]) -> Generator[None, None, None]:
    """Give everything in a tree to a group, what is deepest first; yields after each.

    `visited` counts. Needs one descriptor, however deep the tree is.
    """
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    above: list[tuple[tuple[int, int], _Folders, str]] = []
    try:
        pending = yield from _files_changed(here, access, visited)
        while True:
            if not pending.names and pending.has_more:
                pending = yield from _folders_after(here, pending.newest)
            if pending.names:
                child = pending.names.pop()
                below = _entered(here, child)
                if below is None:
                    continue
                above.append((folder_identity(here), pending, child))
                os.close(here)
                here = below
                pending = yield from _files_changed(here, access, visited)
                continue
            _change_open(here, access)
            if not above:
                return
            identity, pending, child = above.pop()
            up = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = up
            if folder_identity(here) != identity:
                raise OSError(errno.ESTALE, "moved while it was given to a group", child)
            visited[0] += 1
            yield
    finally:
        os.close(here)


def _files_changed(
    folder: int, access: GroupAccess, visited: list[int]
) -> Generator[None, None, _Folders]:
    """Give all but the folders in a folder to a group; return the first of these."""
    found = _FirstNames()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.add(entry.name)
                yield
                continue
            with contextlib.suppress(FileNotFoundError):
                _change(folder, entry.name, access)
            visited[0] += 1
            yield
    return found.folders()


def _folders_after(folder: int, name: str) -> Generator[None, None, _Folders]:
    """Return the next folders in a folder, in the order of their names."""
    found = _FirstNames()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name > name and entry.is_dir(follow_symlinks=False):
                found.add(entry.name)
            yield
    return found.folders()


@define
class _FirstNames:
    """The first FOLDERS_AT_ONCE of all names that are added; keeps twice as many at most."""

    names: list[str] = field(factory=list)
    has_more: bool = False

    def add(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == 2 * FOLDERS_AT_ONCE:
            self._cut()

    def folders(self) -> _Folders:
        self._cut()
        newest = self.names[-1] if self.names else ""
        return _Folders(self.names[::-1], newest, self.has_more)

    def _cut(self) -> None:
        self.names.sort()
        self.has_more = self.has_more or len(self.names) > FOLDERS_AT_ONCE
        del self.names[FOLDERS_AT_ONCE:]


def _entered(parent: int, name: str) -> int | None:
    """Return a descriptor of a folder; None if it is gone, a symlink by now, or a mount point."""
    try:
        return enter_folder(parent, name)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EXDEV, errno.ELOOP, errno.ENOTDIR):
            return None
        raise


def _change(folder: int, name: str, access: GroupAccess) -> None:
    file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(file).st_mode):
            os.chown(name, -1, access.group, dir_fd=folder, follow_symlinks=False)
        else:
            _change_open(file, access)
    finally:
        os.close(file)


def _change_open(file: int, access: GroupAccess) -> None:
    """Give an open file to a group. A change of the group takes the set-id bits: it comes first."""
    status, path = os.fstat(file), Path(f"/proc/self/fd/{file}")
    mode = access.mode(status.st_mode)
    if status.st_gid != access.group:
        os.chown(path, -1, access.group)
    elif mode == stat.S_IMODE(status.st_mode):
        return
    path.chmod(mode)
