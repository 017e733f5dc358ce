"""A provider of statistics on a cgroup tree of files and a runtime without a kernel."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from tests.trio_clock import TrioClock
from tests.unit.stats.kernel import CONTAINER, MI, SANDBOX, UID, machine
from trio_kubelet.csi import MeasuredVolume
from trio_kubelet.resources import CgroupTree
from trio_kubelet.rpc import Code, InProcess, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.server import AnswerWriters
from trio_kubelet.stats import (
    CgroupReader,
    PodPaths,
    StatsProvider,
    StatsSources,
)


@define
class Runtime:
    """A runtime that only has statistics, and counts who asks."""

    asked: int = 0
    is_down: bool = False
    counts_every_seconds: float = 0
    layers: Mapping[str, int] = field(factory=lambda: {CONTAINER: 7 * MI})
    labels: dict[str, str] = field(factory=dict)
    images_at: str = ""
    sandbox_memory: int = 0
    """The memory that the sandbox uses with its containers; 0 if nothing is told of sandboxes."""

    async def list_container_stats(
        self, _request: cri.ListContainerStatsRequest
    ) -> cri.ListContainerStatsResponse:
        self.asked += 1
        for _ in range(5):
            await trio.lowlevel.checkpoint()  # The other call of the round is answered first.
        if self.is_down:
            raise RpcError(Code.UNAVAILABLE, "away")
        now = TrioClock().now_ns()
        period_ns = int(self.counts_every_seconds * 1e9)
        counted_ns = now - now % period_ns if period_ns else now
        return cri.ListContainerStatsResponse(
            stats=[
                cri.ContainerStats(
                    attributes=cri.ContainerAttributes(id=container_id, labels=self.labels),
                    cpu=cri.CpuUsage(
                        timestamp=now, usage_core_nano_seconds=cri.UInt64Value(value=5)
                    ),
                    memory=cri.MemoryUsage(
                        timestamp=now, working_set_bytes=cri.UInt64Value(value=3 * MI)
                    ),
                    writable_layer=cri.FilesystemUsage(
                        timestamp=counted_ns, used_bytes=cri.UInt64Value(value=used)
                    ),
                )
                for container_id, used in self.layers.items()
            ]
        )

    async def list_pod_sandbox_stats(
        self, _request: cri.ListPodSandboxStatsRequest
    ) -> cri.ListPodSandboxStatsResponse:
        await trio.lowlevel.checkpoint()
        if not self.sandbox_memory:
            raise RpcError(Code.UNIMPLEMENTED, "unknown method ListPodSandboxStats")
        memory = cri.MemoryUsage(
            timestamp=TrioClock().now_ns(),
            working_set_bytes=cri.UInt64Value(value=self.sandbox_memory),
        )
        processes = cri.ProcessUsage(process_count=cri.UInt64Value(value=4))
        stats = cri.PodSandboxStats(
            attributes=cri.PodSandboxAttributes(id=SANDBOX),
            linux=cri.LinuxPodSandboxStats(memory=memory, process=processes),
        )
        return cri.ListPodSandboxStatsResponse(stats=[stats])

    async def image_fs_info(self, _request: cri.ImageFsInfoRequest) -> cri.ImageFsInfoResponse:
        used = cri.FilesystemUsage(
            fs_id=cri.FilesystemIdentifier(mountpoint=self.images_at),
            used_bytes=cri.UInt64Value(value=9 * MI),
        )
        return cri.ImageFsInfoResponse(image_filesystems=[used])


@define
class Node:
    """A provider, and what it reads."""

    provider: StatsProvider
    writers: AnswerWriters
    runtime: Runtime
    cgroups: Path
    reads: list[str]


def observed() -> ObservedPod:
    sandbox = ObservedSandbox(
        id=SANDBOX, name="web", namespace="default", uid=UID, attempt=0, ready=True, created_at=5
    )
    container = ObservedContainer(
        id=CONTAINER,
        name="main",
        sandbox_id=SANDBOX,
        state=ObservedState.RUNNING,
        started_at=6,
        image="busybox",
    )
    return ObservedPod(
        uid=UID,
        name="web",
        namespace="default",
        observed_at=0,
        sandboxes=(sandbox,),
        containers=(container,),
    )


@asynccontextmanager
async def reading(
    root: Path,
    *,
    with_cgroups: bool = True,
    pod: ObservedPod | None = None,
    is_seen: bool = True,
    images_on_disk: bool = False,
    of_drivers: Sequence[MeasuredVolume] = (),
) -> AsyncIterator[Node]:
    cgroups = machine(root)
    tree = CgroupTree(
        version=2, hierarchies=dict.fromkeys(("cpu", "memory", "io", "pids"), cgroups)
    )
    runtime = Runtime()
    reads: list[str] = []

    def processes() -> Mapping[str, int]:
        reads.append("read")
        return {}

    provider = StatsProvider(
        StatsSources(
            client=RuntimeClient(InProcess(runtime)),
            clock=TrioClock(),
            reader=CgroupReader(tree=tree if with_cgroups else None, host=str(root / "host")),
            pods=lambda: [pod or observed()] if is_seen else [],
            paths=lambda pod: PodPaths(
                uid=pod.uid,
                namespace=pod.namespace,
                volumes=root / "pods" / pod.uid / "volumes",
                logs=root / "logs",
            ),
            processes=processes,
            root_folder=root,
            images_on_disk=images_on_disk,
            volume_seconds=60,
            of_drivers=lambda: of_drivers,
        )
    )
    async with trio.open_nursery() as nursery:
        writers = AnswerWriters()
        nursery.start_soon(provider.run)
        nursery.start_soon(writers.run)
        yield Node(
            provider=provider, writers=writers, runtime=runtime, cgroups=cgroups, reads=reads
        )
        nursery.cancel_scope.cancel()
