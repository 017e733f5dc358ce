"""The one place where the agent learns what is used: by the node, its pods and its own parts.

Nothing is read unless somebody asks; who asks meanwhile shares the reading, and what is ten
seconds old is read anew. What costs more is read only for who wants it: cgroups are cheap, the
runtime's stats and details of cgroups are not, and disks have a slower rhythm (`disk_usage.py`).
Files are read in threads of this part's own. A disk that hangs holds up nobody for longer than
five seconds, and its figures are left out.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import evolve, frozen

from trio_kubelet.csi import MeasuredVolume
from trio_kubelet.k8s import Pod
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
from trio_kubelet.stats.pods import (
    StatsInputs,
    lacks_cgroups,
    pod_stats,
    shown,
    volumes_of_drivers,
    with_unseen,
)
from trio_kubelet.stats.rates import Rates
from trio_kubelet.stats.runtime_stats import (
    RuntimeFilesystem,
    RuntimeStats,
    has_layers_before,
    ids_of_pods,
    runtime_containers,
    runtime_filesystem,
    runtime_sandboxes,
)
from trio_kubelet.stats.shared import ANY_AGE, SharedValue
from trio_kubelet.stats.values import Filesystem, NodeReading, NodeStats, Stats
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks, both, run_concurrently
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("stats")

FRESH_SECONDS = 10.0
RATE_SECONDS = 1.0
"""Between the first two samples, when nobody has asked for long."""

DEADLINE_SECONDS = 5.0
OBSERVATION_SECONDS = 1.0
"""The time that an observation of the node waits for disks: memory may run out meanwhile."""
DECISION_SECONDS = 15.0
"""For the files of pods that nobody has counted yet, for who decides which pod has to go."""
LAYERS_SECONDS = 12.0
"""For writable layers, which containerd counts every ten seconds, whoever asks."""
LAYERS_PAUSE_SECONDS = 0.5
FOLDERS_SECONDS = 300.0
"""The time that the runtime's folders are taken for what they were: they are configured."""

NODE = "node"


@frozen(kw_only=True)
class StatsSources:
    """The sources that a provider reads."""

    client: RuntimeClient
    clock: Clock
    reader: CgroupReader
    pods: Callable[[], Iterable[ObservedPod]]
    """Returns what the runtime has."""
    paths: Callable[[ObservedPod], PodPaths]
    """Returns where a pod keeps its files."""
    processes: Callable[[], Mapping[str, int]]
    """Returns a process of each system container by name. Blocks."""
    root_folder: Path
    """--root-dir."""
    images_on_disk: bool
    """Images are on a disk of this machine."""
    volume_seconds: float
    of_drivers: Callable[[], Iterable[MeasuredVolume]]
    """Returns the volumes that CSI drivers tell of."""


@frozen(kw_only=True)
class _ReadRequest:
    """The wishes of one reader beside the usage of cgroups."""

    depth: Depth = Depth.USAGE
    rates: bool = False
    disks: bool = False
    fresh_files: bool = False
    fresh_layers: bool = False
    newer_than: float = ANY_AGE
    pods: tuple[Pod, ...] | None = None
    """Those of which figures are needed, for who decides; None for who shows what there is."""


@frozen
class _Disks:
    """File systems by their mount points, and the space that pods use of them, by UID."""

    filesystems: Mapping[str, Filesystem]
    pods: Mapping[str, PodDisk]


class StatsProvider:
    """Reads for all readers, who wait until it runs. `on_disk_walk` is as in `DiskUsages`."""

    def __init__(self, sources: StatsSources) -> None:
        tasks = self._tasks = BackgroundTasks()
        self._sources = sources
        self._threads = trio.CapacityLimiter(1)
        self._disk_threads: dict[str, trio.CapacityLimiter] = {}
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

    async def usage_since(
        self,
        time: float,
        pods: Iterable[Pod],
        *,
        disks: bool,
        fresh_files: bool = False,
        fresh_layers: bool = False,
    ) -> Stats:
        """As `usage`, read at `time` (trio's clock) or later, for who decides between `pods`.

        All of them are there, also without a sandbox, and all others that the runtime has. With
        `disks`, files of pods that nobody has counted yet are waited for, with `fresh_files` those
        that nobody has counted since; with `fresh_layers`, writable layers that the runtime has
        counted since this call, if it does.
        """
        wanted = _ReadRequest(
            disks=disks,
            fresh_files=fresh_files,
            fresh_layers=fresh_layers,
            newer_than=time,
            pods=tuple(pods),
        )
        return await self._stats(wanted)

    async def node_since(self, time: float) -> NodeReading:
        """The node without its pods, read at `time` (trio's clock) or later.

        Disks that take longer than OBSERVATION_SECONDS are left out.
        """
        sources = self._sources
        filesystems: Mapping[str, Filesystem] = {}

        async def read_cgroups() -> NodeReading:
            read = partial(sources.reader.read_node, Stopwatch(sources.clock.now_ns()))
            return await run_in_thread(read, limiter=self._threads)

        async def measure_disks() -> None:
            nonlocal filesystems
            with trio.move_on_after(self._disk_patience_seconds()):
                filesystems = await self._filesystems.get(time)

        found, _ = await both(read_cgroups, measure_disks)
        root = str(sources.root_folder)
        return evolve(
            found, node=with_filesystems(found.node, filesystems, self._known_folders, root)
        )

    def _disk_patience_seconds(self) -> float:
        """Without end until the runtime has told where images are: then it is known what to miss.

        The measurement itself ends in any case.
        """
        is_first = self._sources.images_on_disk and self._known_folders.images is None
        return float("inf") if is_first else OBSERVATION_SECONDS

    async def disks(self) -> Mapping[str, PodDisk]:
        """The space that volumes and logs of pods use, by UID, as far as it is known."""
        return await self._disks.get(map(self._sources.paths, shown(self._sources.pods())))

    async def _stats(self, wanted: _ReadRequest) -> Stats:
        seen = self._sources.pods()
        pods = shown(seen) if wanted.pods is None else with_unseen(seen, wanted.pods)
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
        # Side by side: each may take long, and who decides has no time for one after the other.
        runtime, disks = await both(
            partial(self._ask_runtime, pods, readings, wanted, problems),
            partial(self._look_at_disks, pods, wanted),
        )
        node, found = readings.node, StatsInputs(readings=readings, runtime=runtime)
        if disks is not None:
            root = str(self._sources.root_folder)
            node = with_filesystems(node, disks.filesystems, runtime, root)
            found = evolve(
                found,
                disks=disks.pods,
                images=node.containers,
                root=node.root,
                of_drivers=volumes_of_drivers(self._sources.of_drivers()),
            )
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

    async def _ask_runtime(
        self,
        pods: tuple[ObservedPod, ...],
        readings: CgroupReadings,
        wanted: _ReadRequest,
        problems: dict[str, str],
    ) -> RuntimeStats | None:
        """The runtime's part of the figures; None if none is needed, or it does not answer."""
        asks_all = lacks_cgroups(pods, readings, of_containers=wanted.pods is None)
        if not asks_all and not wanted.disks:
            return None
        ask = partial(self._runtime, problems, sandboxes=asks_all)
        runtime = await ask(newer_than=wanted.newer_than)
        return await self._with_fresh_layers(runtime, ask) if wanted.fresh_layers else runtime

    async def _look_at_disks(
        self, pods: tuple[ObservedPod, ...], wanted: _ReadRequest
    ) -> _Disks | None:
        if not wanted.disks:
            return None
        filesystems = await self._filesystems.get(wanted.newer_than)
        patience = FIRST_SECONDS if wanted.newer_than == ANY_AGE else DECISION_SECONDS
        counted_after = wanted.newer_than if wanted.fresh_files else ANY_AGE
        paths = map(self._sources.paths, pods)
        of_pods = await self._disks.get(paths, patience, counted_after)
        self._disks.keep_only(pod.uid for pod in (*self._sources.pods(), *pods))
        return _Disks(filesystems, of_pods)

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

    async def _with_fresh_layers(
        self, told: RuntimeStats | None, ask: Callable[..., Awaitable[RuntimeStats | None]]
    ) -> RuntimeStats | None:
        """Ask until all layers were counted after this call; what is known by then if not."""
        since_ns = self._sources.clock.now_ns()
        with trio.move_on_after(LAYERS_SECONDS):
            while told is not None and has_layers_before(told, since_ns):
                await trio.sleep(LAYERS_PAUSE_SECONDS)
                told = await ask(newer_than=trio.current_time())
        return told

    async def _runtime(
        self, problems: dict[str, str], *, sandboxes: bool, newer_than: float
    ) -> RuntimeStats | None:
        """The runtime's statistics; None, and a problem, if it says nothing."""
        try:
            told = await self._containers.get(newer_than)
            if sandboxes:
                told = evolve(told, sandboxes=(await self._sandboxes.get(newer_than)).sandboxes)
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
            # In a thread: a tenant may have thousands of containers.
            containers = await run_in_thread(runtime_containers, stats)
            told = evolve(told, containers=containers, of_pods=ids_of_pods(containers))

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
            # Where the folders are known, a runtime that hangs must not hide the node's own disk.
            is_known = self._known_folders.images is not None
            patience = OBSERVATION_SECONDS / 2 if is_known else DEADLINE_SECONDS
            with trio.move_on_after(patience), suppress(RpcError):
                await self._folders.get()
            known = self._known_folders
            folders |= {each.mountpoint for each in (known.images, known.layers) if each}
        found: dict[str, Filesystem] = {}

        async def measure(folder: str) -> None:
            found.update(await self._measure_filesystem(folder))

        await run_concurrently(*(partial(measure, folder) for folder in sorted(folders)))
        return found

    async def _measure_filesystem(self, folder: str) -> Mapping[str, Filesystem]:
        """One file system, in a thread of its own: where images hang, the node's disk is seen."""
        threads = self._disk_threads.setdefault(folder, trio.CapacityLimiter(1))
        if threads.available_tokens == 0:
            log.warning("filesystem measurement skipped, an earlier one still hangs", folder=folder)
            return {}
        work = partial(filesystems_of, [folder], self._sources.clock.now_ns())
        with trio.move_on_after(DEADLINE_SECONDS):
            return await run_in_thread(work, limiter=threads, abandon_on_cancel=True)
        log.warning("filesystem measurement timed out", folder=folder)
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
