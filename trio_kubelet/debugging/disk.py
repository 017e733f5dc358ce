"""`/debug/disk`: what uses the node's disk, for `trio-kubelet disk`.

By pod what its logs, the writable layers of its containers and its emptyDir volumes on disk take;
images with their last use; dead containers; files that are deleted and still open. The figures of
pods are those that `/stats/summary` has, and as old. What cannot be found out is left out, and is
named among the problems.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import trio
from attrs import field, frozen

from trio_kubelet.debugging.deleted_files import DeletedFiles, find_deleted_files
from trio_kubelet.errors import CollectionError
from trio_kubelet.k8s import Pod, Time
from trio_kubelet.k8s.json_text import dumps
from trio_kubelet.runtime.images.collector import ImageCollector, ImageUsage
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.server.messages import Request, Response
from trio_kubelet.server.router import ADMIN, Route
from trio_kubelet.stats import PodStats, StatsProvider
from trio_kubelet.stats.disk_usage import PodDisk
from trio_kubelet.tasks.threads import run_in_thread

DEADLINE_SECONDS = 8.0
"""For the search for deleted files, which a file system may let hang."""

Fields = Mapping[str, object]


@frozen(kw_only=True)
class DiskReport:
    """Puts the report together. `pods` are those of the sources, `observed` the runtime's."""

    stats: StatsProvider
    images: ImageCollector
    pods: Callable[[], Iterable[Pod]]
    observed: Callable[[], Iterable[ObservedPod]]
    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def answer(self, _request: Request) -> Response:
        """The report as JSON."""
        problems: dict[str, str] = {}
        images: Sequence[ImageUsage] = ()
        try:
            images = await self.images.usage()
        except CollectionError as error:
            problems["images"] = str(error)
        stats = await self.stats.full()
        problems.update(stats.problems)
        disks = await self.stats.disks()
        observed = tuple(self.observed())
        deleted = await self._deleted_files(observed, problems)
        empty_dirs = {
            pod.metadata.uid: frozenset(v.name for v in pod.spec.volumes if v.empty_dir is not None)
            for pod in self.pods()
        }

        def printed() -> bytes:
            return dumps(
                {
                    "pods": pods_on_disk(observed, stats.pods, disks, empty_dirs),
                    "images": [_image(each) for each in images],
                    "deadContainers": dead_containers(observed),
                    "deletedFiles": _deleted_files(deleted, observed),
                    "problems": problems,
                }
            )

        body = await run_in_thread(printed)
        return Response(content_type="application/json", body=body)

    async def _deleted_files(
        self, observed: Iterable[ObservedPod], problems: dict[str, str]
    ) -> DeletedFiles:
        ids = frozenset(each.id for pod in observed for each in pod.containers)
        with trio.move_on_after(DEADLINE_SECONDS):
            find = partial(find_deleted_files, ids)
            found = await run_in_thread(find, limiter=self._threads, abandon_on_cancel=True)
            if not found.complete:
                problems["deletedFiles"] = "there are too many processes or open files to look at"
            return found
        problems["deletedFiles"] = "the search for deleted files does not end"
        return DeletedFiles(files=(), complete=False)


def disk_routes(report: DiskReport) -> Sequence[Route]:
    """The one route."""
    return (Route("GET", "/debug/disk", report.answer, ADMIN),)


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
    owners = {each.id: (pod, each.name) for pod in observed for each in pod.containers}
    return [
        {
            "namespace": owners[file.container_id][0].namespace,
            "pod": owners[file.container_id][0].name,
            "container": owners[file.container_id][1],
            "pid": file.pid,
            "path": file.path,
            "bytes": file.used_bytes,
        }
        for file in found.files
    ]
