"""The one place where the agent learns what is used: by the node, its pods and its own parts.

Nothing is read unless somebody asks; who asks meanwhile shares the reading, and what is ten
seconds old is read anew. What costs more is read only for who wants it: cgroups are cheap, the
runtime's stats and details of cgroups are not, and disks have a slower rhythm (`disk_usage.py`).
Files are read in threads of this part's own. A disk that hangs holds up nobody for longer than
five seconds, and its figures are left out.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import evolve, frozen

from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.stats.cgroup_reader import CgroupReader, CgroupReadings, Depth, Stopwatch
from trio_kubelet.stats.disk_usage import (
    FIRST_SECONDS,
    DiskUsages,
    PodDisk,
    PodPaths,
    filesystem,
)
from trio_kubelet.stats.pods import StatsInputs, lacks_cgroups, pod_stats, shown
from trio_kubelet.stats.rates import Rates
from trio_kubelet.stats.runtime_stats import (
    RuntimeFilesystem,
    RuntimeStats,
    runtime_containers,
    runtime_filesystem,
    runtime_sandboxes,
)
from trio_kubelet.stats.shared import ANY_AGE, SharedValue
from trio_kubelet.stats.values import Filesystem, NodeReading, NodeStats, Stats
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks, run_concurrently
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("stats")

FRESH_SECONDS = 10.0
RATE_SECONDS = 1.0
"""Between the first two samples, when nobody has asked for long."""

DEADLINE_SECONDS = 5.0
DECISION_SECONDS = 15.0
"""For the files of pods that nobody has counted yet, for who decides which pod has to go."""
FOLDERS_SECONDS = 300.0
"""The time that the runtime's folders are taken for what they were: they are configured."""

NODE = "node"


@frozen(kw_only=True)
class StatsSources:
    """The sources that a provider reads.

    `pods` returns what the runtime has, `paths` where a pod keeps its files, `processes` a process
    of each system container by name, which may block. `root_folder` is --root-dir. With
    `images_on_disk` images are on a disk of this machine.
    """

    client: RuntimeClient
    clock: Clock
    reader: CgroupReader
    pods: Callable[[], Iterable[ObservedPod]]
    paths: Callable[[ObservedPod], PodPaths]
    processes: Callable[[], Mapping[str, int]]
    root_folder: Path
    images_on_disk: bool
    volume_seconds: float


@frozen(kw_only=True)
class _ReadRequest:
    """The wishes of one reader beside the usage of cgroups."""

    depth: Depth = Depth.USAGE
    rates: bool = False
    disks: bool = False
    newer_than: float = ANY_AGE


class StatsProvider:
    """Reads for all readers, who wait until it runs. `on_disk_walk` is as in `DiskUsages`."""

    def __init__(self, sources: StatsSources) -> None:
        tasks = self._tasks = BackgroundTasks()
        self._sources = sources
        self._threads = trio.CapacityLimiter(1)
        self._disk_threads = trio.CapacityLimiter(1)
        self._rates = Rates()
        self._readings = {
            depth: SharedValue(tasks, partial(self._read, depth), FRESH_SECONDS) for depth in Depth
        }
        self._containers = SharedValue(tasks, self._ask_containers, FRESH_SECONDS)
        self._sandboxes = SharedValue(tasks, self._ask_sandboxes, FRESH_SECONDS)
        self._filesystems = SharedValue(tasks, self._measure_filesystems, FRESH_SECONDS)
        self._folders = SharedValue(tasks, self._ask_folders, FOLDERS_SECONDS)
        self._known_folders = RuntimeStats()
        self._disks = DiskUsages(tasks, sources.clock, sources.volume_seconds)
        self.on_disk_walk = self._disks.on_walk

    async def run(self) -> None:
        """Let readers read, until cancelled."""
        await self._tasks.run()

    async def usage(self) -> Stats:
        """CPU, memory and swap of everything, at most ten seconds old."""
        return await self._stats(_ReadRequest())

    async def rated_usage(self) -> Stats:
        """As `usage`, with CPU per second; takes a second where nobody has asked for long."""
        return await self._stats(_ReadRequest(rates=True))

    async def detailed_usage(self) -> Stats:
        """As `usage`, with networks and with what monitoring wants of cgroups."""
        return await self._stats(_ReadRequest(depth=Depth.DETAILS))

    async def full(self) -> Stats:
        """As `rated_usage`, with networks and disks."""
        return await self._stats(_ReadRequest(depth=Depth.NETWORK, rates=True, disks=True))

    async def usage_since(self, time: float, *, disks: bool) -> Stats:
        """As `usage`, read at `time` (trio's clock) or later, for who decides by it.

        With `disks`, files of pods that nobody has counted yet are waited for.
        """
        return await self._stats(_ReadRequest(disks=disks, newer_than=time))

    async def node_since(self, time: float) -> NodeReading:
        """The node without its pods, read at `time` (trio's clock) or later."""
        sources = self._sources
        filesystems = await self._filesystems.get(time)
        read = partial(sources.reader.read_node, Stopwatch(sources.clock.now_ns()))
        found = await run_in_thread(read, limiter=self._threads)
        root = str(sources.root_folder)
        return evolve(
            found, node=with_filesystems(found.node, filesystems, self._known_folders, root)
        )

    async def disks(self) -> Mapping[str, PodDisk]:
        """The space that volumes and logs of pods use, by UID, as far as it is known."""
        return await self._disks.get(map(self._sources.paths, shown(self._sources.pods())))

    async def _stats(self, wanted: _ReadRequest) -> Stats:
        pods = shown(self._sources.pods())
        readings = await self._readings_of(wanted.depth, wanted.newer_than)
        if wanted.rates and not self._rates.is_known(NODE, readings.node.usage.time_ns):
            await self._put_together(pods, readings, _ReadRequest())
            await trio.sleep(RATE_SECONDS)
            self._readings[readings.depth].expire(readings)
            readings = await self._readings_of(wanted.depth)
        return await self._put_together(pods, readings, wanted)

    async def _put_together(
        self, pods: tuple[ObservedPod, ...], readings: CgroupReadings, wanted: _ReadRequest
    ) -> Stats:
        problems: dict[str, str] = {}
        asks_all = lacks_cgroups(pods, readings)
        runtime = None
        if asks_all or wanted.disks:
            runtime = await self._runtime(
                problems, sandboxes=asks_all, newer_than=wanted.newer_than
            )
        node, found = readings.node, StatsInputs(readings=readings, runtime=runtime)
        if wanted.disks:
            filesystems = await self._filesystems.get(wanted.newer_than)
            patience = FIRST_SECONDS if wanted.newer_than == ANY_AGE else DECISION_SECONDS
            disks = await self._disks.get(map(self._sources.paths, pods), patience)
            root = str(self._sources.root_folder)
            node = with_filesystems(node, filesystems, runtime, root)
            found = evolve(found, disks=disks, images=node.containers, root=node.root)
        stats = pod_stats(pods, found, self._rates)
        system = tuple(
            evolve(each, usage=self._rates.rated(each.cgroup, each.usage))
            for each in readings.system
        )
        node = evolve(node, usage=self._rates.rated(NODE, node.usage))
        self._rates.keep_only(
            [
                NODE,
                *(each.cgroup for each in system),
                *(pod.uid for pod in stats),
                *(container.id for pod in stats for container in pod.containers),
            ]
        )
        return Stats(
            node=node, pods=stats, system=system, cgroups=readings.between, problems=problems
        )

    async def _readings_of(self, depth: Depth, newer_than: float = ANY_AGE) -> CgroupReadings:
        """Readings that are fresh and go deep enough, or new ones."""
        for each in Depth:
            if each > depth and newer_than == ANY_AGE and self._readings[each].is_fresh:
                return await self._readings[each].get()
        return await self._readings[depth].get(newer_than)

    async def _read(self, depth: Depth) -> CgroupReadings:
        sources = self._sources
        read = partial(
            sources.reader.read, Stopwatch(sources.clock.now_ns()), depth, sources.processes
        )
        return await run_in_thread(read, limiter=self._threads)

    async def _runtime(
        self, problems: dict[str, str], *, sandboxes: bool, newer_than: float
    ) -> RuntimeStats | None:
        """The runtime's statistics; None, and a problem, if it says nothing."""
        try:
            told = await self._containers.get(newer_than)
            if sandboxes:
                told = evolve(told, sandboxes=(await self._sandboxes.get()).sandboxes)
        except RpcError as error:
            problems["runtime"] = str(error)
            return None
        return told

    async def _ask_containers(self) -> RuntimeStats:
        client = self._sources.client
        told = RuntimeStats()

        async def ask_containers() -> None:
            nonlocal told
            stats = await client.list_container_stats()
            told = evolve(told, containers=runtime_containers(stats))

        async def ask_filesystems() -> None:
            nonlocal told
            folders = await self._ask_folders()
            told = evolve(told, images=folders.images, layers=folders.layers)

        await run_concurrently(ask_containers, ask_filesystems)
        return told

    async def _ask_folders(self) -> RuntimeStats:
        """The file systems of the runtime."""
        info = await self._sources.client.image_fs_info()
        self._known_folders = RuntimeStats(
            images=runtime_filesystem(info.image_filesystems),
            layers=runtime_filesystem(info.container_filesystems),
        )
        return self._known_folders

    async def _ask_sandboxes(self) -> RuntimeStats:
        try:
            stats = await self._sources.client.list_pod_sandbox_stats()
        except RpcError as error:
            if error.code is not Code.UNIMPLEMENTED:
                raise
            stats = ()
        return RuntimeStats(sandboxes=runtime_sandboxes(stats))

    async def _measure_filesystems(self) -> Mapping[str, Filesystem]:
        """The file systems of --root-dir and of the runtime, by their mount points.

        What hangs, or is not there, is missing.
        """
        sources = self._sources
        folders = {str(sources.root_folder)}
        if sources.images_on_disk:
            with trio.move_on_after(DEADLINE_SECONDS), suppress(RpcError):
                await self._folders.get()
            known = self._known_folders
            folders |= {each.mountpoint for each in (known.images, known.layers) if each}
        measure = partial(filesystems_of, sorted(folders), sources.clock.now_ns())
        if self._disk_threads.available_tokens == 0:
            log.warning("filesystem measurement skipped, an earlier one still hangs")
            return {}
        with trio.move_on_after(DEADLINE_SECONDS):
            return await run_in_thread(measure, limiter=self._disk_threads, abandon_on_cancel=True)
        log.warning("filesystem measurement timed out", folders=sorted(folders))
        return {}


def filesystems_of(folders: Iterable[str], now_ns: int) -> Mapping[str, Filesystem]:
    """The file systems that folders are on, as the kernel tells of them. Blocks."""
    found: dict[str, Filesystem] = {}
    for folder in folders:
        try:
            told, device = os.statvfs(folder), os.stat(folder).st_dev  # noqa: PTH116 - text
        except (OSError, ValueError) as error:
            log.warning("filesystem measurement failed", folder=folder, error=str(error))
            continue
        whole = filesystem(
            told,
            now_ns,
            used=(told.f_blocks - told.f_bfree) * told.f_frsize,
            inodes_used=told.f_files - told.f_ffree,
        )
        found[folder] = evolve(whole, device=device)
    return found


def with_filesystems(
    node: NodeStats,
    found: Mapping[str, Filesystem],
    runtime: RuntimeStats | None,
    root_folder: str,
) -> NodeStats:
    """The node with its file systems: its own, and what images and containers use of theirs."""
    images = runtime.images if runtime is not None else None
    layers = runtime.layers if runtime is not None else None
    return evolve(
        node,
        root=found.get(root_folder),
        images=_used_of(images, found),
        containers=_used_of(layers or images, found),
    )


def _used_of(told: RuntimeFilesystem | None, found: Mapping[str, Filesystem]) -> Filesystem | None:
    if told is None:
        return None
    whole = found.get(told.mountpoint)
    if whole is None:
        return told.used
    used = told.used
    return evolve(whole, used=used.used, inodes_used=used.inodes_used)
