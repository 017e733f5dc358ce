"""Rotates the logs of containers that have become large, and packs what they were rotated into.

A log is looked at when its growth says that it may be full, every `containerLogMonitorInterval` at
the latest. Room is made first: the oldest file goes before a log is renamed, and before anything is
packed. The runtime is told to make the log anew; if it does not, the log gets its name back, so
that nobody's lines are lost. Packing goes on beside it, a piece at a time, in turns of namespaces,
and holds up no rotation.

Of a container that has ended, what is half done is finished; its log stays as it is.
"""

import errno
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial

import structlog
import trio
from attrs import define, frozen

from trio_kubelet.logs.files import LogPlace, NoLogError, open_folder, place_of
from trio_kubelet.logs.rotating_files import LogFolder, log_folder
from trio_kubelet.logs.rotation import (
    LEAST_SECONDS,
    RotatedFiles,
    RotationPolicy,
    next_name,
    seconds_to_next_look,
)
from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.health import RuntimeHealth
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.fair_limiter import ALL_PODS, FairLimiter, Share

log = structlog.get_logger("logs")

THREADS = 4
"""Threads that look at logs and rename them; those that pack are containerLogMaxWorkers."""

LOOKED_AT_ONCE = 256
ROTATED_AT_ONCE, ROTATED_OF_NAMESPACE = 16, 8
"""Logs: each is a call to the runtime, and a pod may have hundreds that are full at once."""
PACKED_AT_ONCE, PACKED_OF_NAMESPACE, PACKED_OF_POD = 8, 4, 2
"""Logs that are being packed, piece by piece: each takes a third of a mebibyte and three files."""


@define(eq=False)
class _WatchedLog:
    """The log of a container; times are trio's clock.

    `has_ended`: its container has, so that it will not grow. `is_tended`: it is being rotated, or
    what was left half done is finished; `is_packing`: what it was rotated into is packed.
    """

    container_id: str
    place: LogPlace
    namespace: str
    pod_uid: str
    due_at: float
    looked_at: float
    has_ended: bool = False
    size_bytes: int = 0
    bytes_per_second: float = 0.0
    is_tended: bool = False
    is_packing: bool = False

    def saw(self, size_bytes: int, now: float) -> None:
        """Take a size, and the growth since the last one; a growth that ends is believed slowly."""
        seconds = max(now - self.looked_at, LEAST_SECONDS)
        grown = size_bytes - self.size_bytes if size_bytes >= self.size_bytes else size_bytes
        self.bytes_per_second = max(grown / seconds, self.bytes_per_second / 2)
        self.size_bytes, self.looked_at = size_bytes, now


@frozen
class _Look:
    """A look at a log: its size, None if it is missing, and whether something is half done."""

    size_bytes: int | None
    is_unfinished: bool


class LogRotator:
    """Owner of the rotation of all logs below `root` (podLogsDir)."""

    def __init__(
        self,
        client: RuntimeClient,
        runtime_health: RuntimeHealth,
        root: str,
        policy: RotationPolicy,
        clock: Clock,
        workers: int,
    ) -> None:
        self._client = client
        self._runtime_health = runtime_health
        self._root = root
        self._policy = policy
        self._clock = clock
        self._files = FairLimiter(THREADS, THREADS // 2)
        self._rotations = FairLimiter(ROTATED_AT_ONCE, ROTATED_OF_NAMESPACE)
        self._packings = FairLimiter(PACKED_AT_ONCE, PACKED_OF_NAMESPACE, PACKED_OF_POD)
        self._packers = _packers(workers)
        self._logs: dict[str, _WatchedLog] = {}
        self._woken = trio.Event()

    def use(self, policy: RotationPolicy) -> None:
        """Rotate by another policy; all logs that grow are looked at anew."""
        self._policy = policy
        due_at = trio.current_time() + LEAST_SECONDS
        for watched in self._logs.values():
            if not watched.has_ended:
                watched.due_at = min(watched.due_at, due_at)
        self._woken.set()

    def use_workers(self, workers: int) -> None:
        """Pack with so many threads what is begun from now on."""
        self._packers = _packers(workers)

    def pod_changed(self, before: ObservedPod, after: ObservedPod) -> None:
        """A pod was looked at: watch the logs of its containers, and no longer those of others."""
        present = {each.id for each in after.containers}
        for container in before.containers:
            if container.id not in present:
                self._logs.pop(container.id, None)
        for container in after.containers:
            self._watch(after, container)

    def _watch(self, pod: ObservedPod, container: ObservedContainer) -> None:
        if container.state is ObservedState.CREATED:
            return
        has_ended = container.state is not ObservedState.RUNNING
        watched = self._logs.get(container.id)
        if watched is not None and watched.has_ended == has_ended:
            return
        now = trio.current_time()
        if watched is None:
            try:
                place = place_of(container.log_path, self._root)
            except NoLogError:
                return  # It has none, or another one's; who asks for it is told.
            age = max(0.0, (self._clock.now_ns() - container.started_at) / 1e9)
            watched = self._logs[container.id] = _WatchedLog(
                container_id=container.id,
                place=place,
                namespace=pod.namespace,
                pod_uid=pod.uid,
                due_at=now + LEAST_SECONDS,
                looked_at=now - age,
            )
        watched.has_ended = has_ended
        watched.due_at = min(watched.due_at, now + LEAST_SECONDS)
        self._woken.set()

    async def run(self) -> None:
        """Rotate for ever. Cancelled, it leaves what the next agent finishes."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._runtime_health.wait_up()
                self._woken = trio.Event()
                now = trio.current_time()
                due = [each for each in self._idle() if each.due_at <= now]
                for start in range(0, len(due), LOOKED_AT_ONCE):
                    await self._look(due[start : start + LOOKED_AT_ONCE], nursery)
                next_at = min((each.due_at for each in self._idle()), default=math.inf)
                # A second at least, so that many logs are looked at together.
                with trio.move_on_at(max(next_at, now + LEAST_SECONDS)):
                    await self._woken.wait()
                    await trio.sleep_until(now + LEAST_SECONDS)

    def _idle(self) -> Iterable[_WatchedLog]:
        return (each for each in self._logs.values() if not each.is_tended)

    async def _look(self, due: Sequence[_WatchedLog], nursery: trio.Nursery) -> None:
        """Look at logs, in one thread, and begin with what there is to do."""
        places = [each.place for each in due]
        looks = await self._files.share(ALL_PODS).run_sync(partial(_look_at, places))
        now = trio.current_time()
        for watched, look in zip(due, looks, strict=True):
            if look is None:
                watched.due_at = now + self._policy.interval_seconds
                continue
            if look.size_bytes is not None:
                watched.saw(look.size_bytes, now)
            is_full = self._policy.is_full(look.size_bytes or 0) and not watched.has_ended
            if is_full or look.size_bytes is None or look.is_unfinished:
                watched.is_tended = True
                nursery.start_soon(self._tend, watched, is_full, nursery)
            else:
                watched.due_at = now + self._seconds_to_next_look(watched)

    def _seconds_to_next_look(self, watched: _WatchedLog) -> float:
        if watched.has_ended:
            return math.inf
        return seconds_to_next_look(watched.size_bytes, watched.bytes_per_second, self._policy)

    async def _tend(self, watched: _WatchedLog, is_full: bool, nursery: trio.Nursery) -> None:
        """Rotate a log that is full, finish what is half done, and have the rest packed."""
        had_ended, wait_seconds = watched.has_ended, self._policy.interval_seconds
        try:
            async with self._rotations.share(watched.namespace, watched.pod_uid):
                await (self._rotate(watched) if is_full else self._finish(watched))
            wait_seconds = self._seconds_to_next_look(watched)
        except (OSError, RpcError) as error:
            _tell(watched, error)
        except Exception:
            log.exception("container log rotation failed", path=str(watched.place.path))
        finally:
            watched.is_tended = False
        if watched.has_ended and not had_ended:
            wait_seconds = LEAST_SECONDS
        watched.due_at = trio.current_time() + wait_seconds
        self._woken.set()
        if not watched.is_packing:
            watched.is_packing = True
            nursery.start_soon(self._pack, watched)

    async def _rotate(self, watched: _WatchedLog) -> None:
        """Rename a log and have it made anew. Raises OSError or RpcError; then it has its name."""
        # Local time, as the Go kubelet names them.
        now = datetime.fromtimestamp(self._clock.now_ns() / 1e9)
        rename = partial(
            _make_room_and_rename, watched.place, self._policy, now, watched.is_packing
        )
        name = await self._share_of(watched).run_sync(rename)
        watched.size_bytes = 0
        await self._reopen(watched, name)

    async def _finish(self, watched: _WatchedLog) -> None:
        """Finish a rotation that was left half done. Raises OSError or RpcError."""
        tidy = partial(_tidy, watched.place, self._policy, watched.is_packing)
        state = await self._share_of(watched).run_sync(tidy)
        if not state.is_missing:
            return
        if not watched.has_ended:
            await self._reopen(watched, state.renamed)
        elif state.renamed is not None:
            await self._share_of(watched).run_sync(partial(_restore, watched.place, state.renamed))

    async def _reopen(self, watched: _WatchedLog, renamed: str | None) -> None:
        """Have a log made anew; if that fails or is cancelled, the renamed one is restored."""
        try:
            await self._client.reopen_container_log(watched.container_id)
        except BaseException:
            if renamed is not None:
                # The runtime may have made it all the same; then both stay.
                with trio.CancelScope(shield=True):
                    restore = partial(_restore, watched.place, renamed)
                    await self._share_of(watched).run_sync(restore)
            raise

    async def _pack(self, watched: _WatchedLog) -> None:
        """Pack what was rotated, but for the newest file."""
        share = self._packers.share(watched.namespace, watched.pod_uid)
        try:
            async with self._packings.share(watched.namespace, watched.pod_uid):
                await _pack_all(watched.place, self._policy, share)
        except OSError as error:
            _tell(watched, error)
            if error.errno == errno.ENOSPC:
                await self._share_of(watched).run_sync(partial(_remove_oldest, watched.place))
        except Exception:
            log.exception("container log packing failed", path=str(watched.place.path))
        finally:
            watched.is_packing = False

    def _share_of(self, watched: _WatchedLog) -> Share:
        return self._files.share(watched.namespace, watched.pod_uid)


def _packers(workers: int) -> FairLimiter:
    return FairLimiter(workers, max(1, workers // 2))


def _tell(watched: _WatchedLog, error: Exception) -> None:
    if isinstance(error, FileNotFoundError):
        return  # The pod goes, and its folder has gone already.
    path = str(watched.place.path)
    log.warning("container log rotation failed, will retry", path=path, error=str(error))


def _look_at(places: Iterable[LogPlace]) -> Sequence[_Look | None]:
    """Look at logs, each in its folder; None for one that cannot be looked at. Blocks."""
    return [_look_at_one(place) for place in places]


def _look_at_one(place: LogPlace) -> _Look | None:
    try:
        with log_folder(place) as folder:
            files = folder.rotated()
            is_unfinished = bool(files.leftovers or files.to_pack(len(files.rotated)))
            return _Look(folder.size_bytes(), is_unfinished)
    except OSError:
        return None


def _make_room_and_rename(
    place: LogPlace, policy: RotationPolicy, now: datetime, is_packing: bool
) -> str:
    """Remove what is too much and rename the log; returns its new name. Blocks. Raises OSError."""
    with log_folder(place) as folder:
        files = folder.rotated()
        _remove(folder, files, policy.rotated_files - 1, is_packing)
        name = next_name(place.name, files.rotated, now)
        folder.rename(name)
        return name


@frozen
class _Tidied:
    """A log that may be missing, and the name that it has been given then, if any."""

    is_missing: bool
    renamed: str | None


def _tidy(place: LogPlace, policy: RotationPolicy, is_packing: bool) -> _Tidied:
    """Remove what is left of a rotation. Blocks. Raises OSError."""
    with log_folder(place) as folder:
        files = folder.rotated()
        _remove(folder, files, policy.rotated_files, is_packing)
        return _Tidied(folder.size_bytes() is None, files.newest_unpacked)


def _remove(folder: LogFolder, files: RotatedFiles, keep: int, is_packing: bool) -> None:
    """Remove the oldest files, and what packing has left unless it is under way."""
    for name in (*(() if is_packing else files.leftovers), *files.excess(keep)):
        folder.remove(name)


def _restore(place: LogPlace, renamed: str) -> None:
    with log_folder(place) as folder:
        folder.restore(renamed)


def _remove_oldest(place: LogPlace) -> None:
    """Make room on a full disk: the oldest of several rotated files goes. Blocks."""
    with log_folder(place) as folder:
        files = folder.rotated()
        if len(files.rotated) > 1:
            folder.remove(files.on_disk(files.rotated[0]))


async def _pack_all(place: LogPlace, policy: RotationPolicy, share: Share) -> None:
    """Pack the rotated files of a log, oldest first. Raises OSError. Cancelled, one is undone."""
    descriptor = await share.run_sync(partial(open_folder, place))
    try:
        folder = LogFolder(descriptor, place.name)
        files = await share.run_sync(folder.rotated)
        for name in files.to_pack(policy.rotated_files):
            with closing(folder.pack(name)) as packing:
                while await share.run_sync(lambda: next(packing, True)) is None:
                    pass
    finally:
        os.close(descriptor)
