"""The disk space of the volumes and logs of pods: all their files have to be looked at.

That costs what the pods' users make it cost, so it is bounded: two threads walk, for pods of two
namespaces, a walk ends after 12 s with what it has counted by then, and a pod's next one begins no
sooner than twenty times what the last one took. So nobody hides what they use behind too many
files: who decides waits for longer than a walk takes, and is told that there are more.

Who only shows figures waits no longer than a second; until there is a result there is none, and an
old one counts meanwhile. Who is to choose a pod for what it uses has files counted since: only
those that took longer than half a second last time, and rest, are as they were then.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.stats.shared import ANY_AGE
from trio_kubelet.stats.values import Filesystem, VolumeStats
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.threads import run_in_thread
from trio_kubelet.volumes import EPHEMERAL_PLUGINS
from trio_kubelet.volumes.folders import plugin_folder

log = structlog.get_logger("stats")

WALKS = 2
"""At once, of different namespaces: each may take WALK_SECONDS, and pods are many."""
WALK_SECONDS = 12.0
STUCK_SECONDS = WALK_SECONDS + 3.0
"""A walk that took longer hangs, in a mount that does not answer: another begins beside it."""
WALKS_WITH_STUCK = 32
REST_FACTOR = 20
QUICK_SECONDS = 0.5
"""A walk that took no longer is made again for a decision, without rest."""
FIRST_SECONDS = 1.0
LOG_PERIOD_SECONDS = 60.0
ETC_HOSTS, CONTAINERS = "etc-hosts", "containers"
"""In a pod's folder; see `runtime/config/names.py`."""
_BLOCK = 512
_CHECK_EVERY = 512
MAX_PENDING = 8 << 20
"""Characters in the paths of folders that a walk has still to look at."""
MAX_LINKED = 200_000
"""Files with several names that a walk remembers."""


@define
class FolderWalk:
    """A walk until a deadline (by time.monotonic); incomplete where not all could be counted."""

    deadline: float
    is_complete: bool = True


@frozen(kw_only=True)
class PodPaths:
    """The folders of a pod's files."""

    uid: str
    namespace: str
    volumes: Path
    logs: Path


@frozen(kw_only=True)
class PodDisk:
    """The sizes that a walk has found: volumes, and logs by the names of containers.

    `seconds` is how long each volume took that is there. `files` are the hosts file and the
    termination messages, which containers may write as much into as they like.
    """

    volumes: tuple[VolumeStats, ...] = ()
    seconds: tuple[float, ...] = ()
    logs: Mapping[str, Filesystem] = field(factory=dict)
    files: Filesystem | None = None
    is_complete: bool = True
    """False if at least so much is used: there was more than can be counted."""


@frozen(kw_only=True)
class FolderSpace:
    """The space that the files of a folder take."""

    used: int
    inodes: int


@frozen
class _Known:
    disk: PodDisk
    began_at: float
    took_seconds: float

    def is_due(self, now: float, period_seconds: float) -> bool:
        """True if it is time to look again."""
        return now >= self.began_at + max(period_seconds, REST_FACTOR * self.took_seconds)

    def is_too_old(self, now: float, newer_than: float) -> bool:
        """True if a decision needs a newer one, and may have it."""
        may_renew = self.took_seconds <= QUICK_SECONDS or self.is_due(now, 0.0)
        return self.began_at < newer_than and may_renew


class DiskUsages:
    """Owner of what is known of the pods' disks.

    `volume_seconds` is how often volumes are looked at; negative: never. `on_walk` is called with
    what each walk that came to its end has found.
    """

    def __init__(self, tasks: BackgroundTasks, clock: Clock, volume_seconds: float) -> None:
        self._tasks = tasks
        self._clock = clock
        self._with_volumes = volume_seconds >= 0
        self._period_seconds = volume_seconds if volume_seconds > 0 else LOG_PERIOD_SECONDS
        self._threads = FairLimiter(
            WALKS, 1, stuck_seconds=STUCK_SECONDS, most_held=WALKS_WITH_STUCK
        )
        self._known: dict[str, _Known] = {}
        self._walking: dict[str, trio.Event] = {}
        self.on_walk: Callbacks[[PodDisk]] = Callbacks()

    async def get(
        self,
        pods: Iterable[PodPaths],
        patience_seconds: float = FIRST_SECONDS,
        newer_than: float = ANY_AGE,
    ) -> Mapping[str, PodDisk]:
        """The known sizes of these pods, by UID; walks begin where it is old.

        Walks of pods of which nothing is known, or nothing `newer_than` (trio's clock), are waited
        for, but no longer than `patience_seconds`.
        """
        wanted = {pod.uid: pod for pod in pods}
        now = trio.current_time()
        for uid, pod in wanted.items():
            known = self._known.get(uid)
            if known is not None and known.is_due(now, self._period_seconds):
                self._start_walk(pod)
        with trio.move_on_after(patience_seconds):
            while missing := [pod for pod in wanted.values() if self._lacks(pod, newer_than)]:
                for walked in [self._start_walk(pod) for pod in missing]:
                    await walked.wait()
        return {uid: known.disk for uid, known in self._known.items() if uid in wanted}

    def keep_only(self, uids: Iterable[str]) -> None:
        """Forget pods that are gone."""
        kept = set(uids)
        self._known = {uid: known for uid, known in self._known.items() if uid in kept}

    def _lacks(self, pod: PodPaths, newer_than: float) -> bool:
        known = self._known.get(pod.uid)
        return known is None or known.is_too_old(trio.current_time(), newer_than)

    def _start_walk(self, pod: PodPaths) -> trio.Event:
        """Begin a walk unless one is under way; returns its end."""
        if pod.uid not in self._walking:
            self._walking[pod.uid] = trio.Event()
            self._tasks.start(partial(self._walk, pod))
        return self._walking[pod.uid]

    async def _walk(self, pod: PodPaths) -> None:
        count = partial(pod_disk, pod, with_volumes=self._with_volumes)
        known = self._known.get(pod.uid)
        disk = known.disk if known is not None else PodDisk()
        began_at = trio.current_time()
        try:
            async with self._threads.share(pod.namespace):
                began_at = trio.current_time()
                now_ns = self._clock.now_ns()
                disk = await run_in_thread(
                    partial(count, now_ns), limiter=trio.CapacityLimiter(1), abandon_on_cancel=True
                )
            if not disk.is_complete:
                log.warning("pod has more files than can be counted", pod=pod.uid)
            self.on_walk.call(disk)
        except Exception:
            log.exception("pod disk usage measurement failed", pod=pod.uid)
        finally:
            self._known[pod.uid] = _Known(disk, began_at, trio.current_time() - began_at)
            self._walking.pop(pod.uid).set()


def pod_disk(pod: PodPaths, now_ns: int, *, with_volumes: bool = True) -> PodDisk:
    """Look at all files of a pod. Blocks."""
    walk = FolderWalk(time.monotonic() + WALK_SECONDS)
    own_device = _device(pod.volumes.parent)
    volumes, seconds = [], []
    for folder in _local_volumes(pod.volumes) if with_volumes else ():
        began_at = time.monotonic()
        found = _filesystem(folder, now_ns, walk)
        if found is not None:
            seconds.append(time.monotonic() - began_at)
            ephemeral = _device(folder) == own_device
            volumes.append(VolumeStats(name=folder.name, filesystem=found, ephemeral=ephemeral))
    logs = {}
    for folder in _folders(pod.logs):
        found = _filesystem(folder, now_ns, walk)
        if found is not None:
            logs[folder.name] = found
    files = _own_files(pod.volumes.parent, now_ns, walk)
    return PodDisk(
        volumes=tuple(volumes),
        seconds=tuple(seconds),
        logs=logs,
        files=files,
        is_complete=walk.is_complete,
    )


def walked(folder: Path, walk: FolderWalk) -> FolderSpace:
    """Add up what is in a folder, itself included, on its own file system, symlinks not followed.

    A file with several names counts once. What goes meanwhile does not count, nor what cannot be
    remembered, or comes after the deadline. Raises OSError for the folder itself.
    """
    top = folder.lstat()
    used, inodes, seen = top.st_blocks * _BLOCK, 1, 0
    linked: set[int] = set()
    folders, pending = [str(folder)], len(str(folder))
    while folders:
        pending -= len(folders[-1])
        for status, path in _entries(folders.pop()):
            seen += 1
            if seen % _CHECK_EVERY == 0 and time.monotonic() > walk.deadline:
                walk.is_complete = False
                return FolderSpace(used=used, inodes=inodes)
            if status.st_dev != top.st_dev:
                continue
            if stat.S_ISDIR(status.st_mode):
                if pending + len(path) > MAX_PENDING:
                    walk.is_complete = False
                else:
                    folders.append(path)
                    pending += len(path)
            elif status.st_nlink > 1:
                if status.st_ino in linked:
                    continue
                if len(linked) >= MAX_LINKED:
                    walk.is_complete = False
                    continue
                linked.add(status.st_ino)
            used += status.st_blocks * _BLOCK
            inodes += 1
    return FolderSpace(used=used, inodes=inodes)


def _entries(folder: str) -> Iterator[tuple[os.stat_result, str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                yield entry.stat(follow_symlinks=False), entry.path


def _filesystem(folder: Path, now_ns: int, walk: FolderWalk) -> Filesystem | None:
    """The space that a folder takes, and the size of its file system; None if it is gone."""
    try:
        found = walked(folder, walk)
        return filesystem(os.statvfs(folder), now_ns, used=found.used, inodes_used=found.inodes)
    except OSError:
        return None


def _own_files(folder: Path, now_ns: int, walk: FolderWalk) -> Filesystem | None:
    """The space of the agent's own files in a pod's folder; None if that is gone."""
    used = inodes = 0
    with suppress(OSError):
        status = (folder / ETC_HOSTS).lstat()
        used, inodes = status.st_blocks * _BLOCK, 1
    with suppress(OSError):
        found = walked(folder / CONTAINERS, walk)
        used, inodes = used + found.used, inodes + found.inodes
    try:
        return filesystem(os.statvfs(folder), now_ns, used=used, inodes_used=inodes)
    except OSError:
        return None


def filesystem(
    found: os.statvfs_result, now_ns: int, *, used: int | None, inodes_used: int | None
) -> Filesystem:
    """A file system as the kernel tells of it, and how much of it something uses."""
    return Filesystem(
        time_ns=now_ns,
        available=found.f_bavail * found.f_frsize,
        capacity=found.f_blocks * found.f_frsize,
        used=used,
        inodes=found.f_files,
        inodes_free=found.f_ffree,
        inodes_used=inodes_used,
    )


def _local_volumes(volumes: Path) -> Iterator[Path]:
    for plugin in EPHEMERAL_PLUGINS:
        yield from _folders(volumes / plugin_folder(plugin))


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(Path(each.path) for each in entries if each.is_dir(follow_symlinks=False))
    return []


def _device(folder: Path) -> int | None:
    with suppress(OSError):
        return folder.lstat().st_dev
    return None
