"""`/debug/disk`: what uses the node's disk, for `trio-kubelet disk`.

By pod what its logs, the writable layers of its containers and its emptyDir volumes on disk take;
images with their last use; dead containers; files that are deleted and still open. The figures of
pods are those that `/stats/summary` has, and as old. All is asked for side by side. What cannot be
found out, or not in time, is left out and named among the problems: a runtime or a disk that hangs
may be why somebody asks.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

import trio
from attrs import define, field, frozen

from trio_kubelet.debugging.deleted_files import DeletedFiles, find_deleted_files
from trio_kubelet.errors import CollectionError
from trio_kubelet.k8s import Pod, Time
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.runtime.images.collector import ImageCollector, ImageUsage
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ADMIN, Route
from trio_kubelet.server.writers import AnswerWriters
from trio_kubelet.stats import PodStats, StatsProvider
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.tasks.concurrency import run_concurrently
from trio_kubelet.tasks.threads import run_in_thread

PATH = "/debug/disk"
DEADLINE_SECONDS = 6.0
"""For each part of the report: the command waits ten seconds for all of it."""

Fields = Mapping[str, object]


@define
class _Found:
    """The parts of a report, as far as they were found out, and the problems by part."""

    images: Sequence[ImageUsage] = ()
    pods: Sequence[PodStats] = ()
    disks: Mapping[str, PodDisk] = field(factory=dict)
    deleted: DeletedFiles = field(factory=lambda: DeletedFiles(files=(), complete=False))
    problems: dict[str, str] = field(factory=dict)

    async def ask(self, part: str, find: Callable[[], Awaitable[None]]) -> None:
        """Find a part out; a problem says so if that fails, or takes too long."""
        with trio.move_on_after(DEADLINE_SECONDS) as scope:
            try:
                await find()
            except CollectionError as error:
                self.problems[part] = str(error)
        if scope.cancelled_caught:
            self.problems[part] = f"not found out within {DEADLINE_SECONDS:.0f} s"


@frozen(kw_only=True)
class DiskReport:
    """Puts the report together. `pods` are those of the sources, `observed` the runtime's."""

    stats: StatsProvider
    images: ImageCollector
    pods: Callable[[], Iterable[Pod]]
    observed: Callable[[], Iterable[ObservedPod]]
    writers: AnswerWriters
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def answer(self, _request: Request) -> Response:
        """The report as JSON."""
        observed, found = tuple(self.observed()), _Found()

        async def find_images() -> None:
            found.images = await self.images.usage()

        async def find_pods() -> None:
            stats = await self.stats.full()
            found.pods = stats.pods
            found.problems.update(stats.problems)

        async def find_files() -> None:
            found.disks = await self.stats.disks()

        async def find_deleted() -> None:
            found.deleted = await self._deleted_files(observed)
            if not found.deleted.complete:
                words = "there are too many processes or open files to look at"
                found.problems["deletedFiles"] = words

        await run_concurrently(
            partial(found.ask, "images", find_images),
            partial(found.ask, "pods", find_pods),
            partial(found.ask, "files", find_files),
            partial(found.ask, "deletedFiles", find_deleted),
        )
        empty_dirs = {
            pod.metadata.uid: frozenset(v.name for v in pod.spec.volumes if v.empty_dir is not None)
            for pod in self.pods()
        }

        def printed() -> bytes:
            return dumps(
                {
                    "pods": pods_on_disk(observed, found.pods, found.disks, empty_dirs),
                    "images": [_image(each) for each in found.images],
                    "deadContainers": dead_containers(observed),
                    "deletedFiles": _deleted_files(found.deleted, observed),
                    "problems": found.problems,
                }
            )

        body = await self.writers.threads(PATH).run_sync(printed)
        return Response(content_type="application/json", body=body)

    async def _deleted_files(self, observed: Iterable[ObservedPod]) -> DeletedFiles:
        """Search in a thread, which is left to itself where a file system lets it hang."""
        ids = frozenset(each.id for pod in observed for each in pod.containers)
        find = partial(find_deleted_files, ids)
        return await run_in_thread(find, limiter=self._threads, abandon_on_cancel=True)


def disk_routes(report: DiskReport) -> Sequence[Route]:
    """The one route."""
    return (Route("GET", PATH, report.answer, ADMIN),)


def pods_on_disk(
    observed: Iterable[ObservedPod],
    stats: Iterable[PodStats],
    disks: Mapping[str, PodDisk],
    empty_dirs: Mapping[str, frozenset[str]],
) -> Sequence[Fields]:
    """The bytes that each pod uses of the disk, the largest first; None where nobody knows.

    `empty_dirs` are the names of the emptyDir volumes of pods, by UID.
    """
    layers = {pod.uid: pod.layers.used for pod in stats if pod.layers is not None}
    rows: list[tuple[int, Fields]] = []
    for pod in observed:
        logs = volumes = None
        if (disk := disks.get(pod.uid)) is not None:
            names = empty_dirs.get(pod.uid, frozenset())
            ours = [each for each in disk.volumes if each.ephemeral and each.name in names]
            logs = sum(each.used or 0 for each in disk.logs.values())
            volumes = sum(each.filesystem.used or 0 for each in ours)
        layer = layers.get(pod.uid)
        row = {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "logBytes": logs,
            "writableLayerBytes": layer,
            "emptyDirBytes": volumes,
        }
        rows.append((sum(each or 0 for each in (logs, layer, volumes)), row))
    return [row for _, row in sorted(rows, key=lambda each: -each[0])]


def _image(usage: ImageUsage) -> Fields:
    image, use = usage.image, usage.use
    return {
        "name": image.shown_name,
        "id": image.key.id,
        "runtimeHandler": image.key.runtime_handler,
        "bytes": image.size_bytes,
        "firstDetected": str(Time(use.first_detected_ns)),
        "lastUsed": str(Time(use.last_used_ns)) if use.last_used_ns else None,
        "inUse": usage.in_use,
        "pinned": image.pinned,
    }


def dead_containers(observed: Iterable[ObservedPod]) -> Sequence[Fields]:
    """The containers that have ended and are still there, the one that ended first first."""
    dead = [
        (each.finished_at, pod, each)
        for pod in observed
        for each in pod.containers
        if each.state is ObservedState.EXITED
    ]
    return [
        {
            "namespace": pod.namespace,
            "pod": pod.name,
            "container": each.name,
            "id": each.id,
            "finished": str(Time(finished_at)),
        }
        for finished_at, pod, each in sorted(dead, key=lambda found: (found[0], found[2].id))
    ]


def _deleted_files(found: DeletedFiles, observed: Iterable[ObservedPod]) -> Sequence[Fields]:
    """Those of the node's own processes have no namespace, pod and container."""
    owners = {
        each.id: {"namespace": pod.namespace, "pod": pod.name, "container": each.name}
        for pod in observed
        for each in pod.containers
    }
    nobody = {"namespace": "", "pod": "", "container": ""}
    return [
        {
            **owners.get(file.container_id, nobody),
            "pid": file.pid,
            "command": file.command,
            "path": file.path,
            "bytes": file.used_bytes,
        }
        for file in found.files
    ]
