"""The CPU time of the looks from which evictions follow, with 250 pods.

The pods are empty cgroups that are made on this machine for it, with a sandbox and a container
each: what the kernel takes to tell of them is in the figures. A node that is short of nothing is
looked at without its pods; these are measured and ranked when one has to go.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import trio

from benchmarks.figures import Figure, spread
from benchmarks.manifests import CONTAINER, manifest
from trio_kubelet.config.eviction import Signal
from trio_kubelet.eviction.observations import disk_layout
from trio_kubelet.eviction.ranking import Candidate, ranked
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.codec import decode
from trio_kubelet.kernel.mountinfo import mount_points
from trio_kubelet.resources import CgroupTree
from trio_kubelet.resources.cgroup_names import kubepods_name, pod_cgroup_name
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.stats import CgroupReader, PodPaths, StatsProvider, StatsSources
from trio_kubelet.tasks.clock import SystemClock

COUNT = 250
ROUNDS = 20
GOAL_MILLISECONDS = 60.0
CGROUP_ROOT = "/trio-kubelet-bench-evictions"


async def measure(benchmark: str, folder: Path) -> list[Figure]:
    """Measure both kinds of looks. Needs root, for the cgroups."""
    pods = [_pod(number) for number in range(COUNT)]
    tree = CgroupTree.find(mount_points())
    with _cgroups(tree, pods):
        async with trio.open_nursery() as nursery:
            provider = _provider(tree, pods, folder)
            nursery.start_soon(provider.run)
            whole = await _cpu_seconds(lambda: _rank(provider, pods))
            short = await _cpu_seconds(lambda: provider.node_since(trio.current_time()))
            nursery.cancel_scope.cancel()
    return [
        Figure(
            benchmark=benchmark,
            name=f"CPU of a pass that measures and ranks {COUNT} pods, cgroup v{tree.version}",
            value=whole[len(whole) // 2] * 1000,
            unit="ms",
            goal=GOAL_MILLISECONDS,
            how=spread(whole),
        ),
        Figure(
            benchmark=benchmark,
            name="CPU of a look at a node that is short of nothing",
            value=short[len(short) // 2] * 1000,
            unit="ms",
            how=f"{short[0] * 1000:.2f}-{short[-1] * 1000:.2f} ms",
        ),
    ]


async def _cpu_seconds(look: Callable[[], Awaitable[object]]) -> Sequence[float]:
    """The CPU time of this process for each of some looks, in order of size; one to warm up."""
    await look()
    seconds = []
    for _ in range(ROUNDS):
        used = time.process_time()
        await look()
        seconds.append(time.process_time() - used)
    return sorted(seconds)


async def _rank(provider: StatsProvider, pods: Sequence[Pod]) -> None:
    """Do as a round of evictions does that has to choose a pod for its memory."""
    reading = await provider.node_since(trio.current_time())
    stats = await provider.usage_since(trio.current_time(), pods, disks=False)
    by_uid = {each.uid: each for each in stats.pods}
    candidates = [Candidate(pod=pod, stats=by_uid[pod.metadata.uid]) for pod in pods]
    assert len(ranked(Signal.MEMORY, candidates, disk_layout(reading.node))) == COUNT


def _pod(number: int) -> Pod:
    document = manifest(f"pod-{number}", f"00000000-0000-4000-8000-{number:012}")
    document["metadata"]["namespace"] = "default"
    return decode(Pod, document)


def _ids(pod: Pod) -> tuple[str, str]:
    """The ids of a pod's sandbox and of its container."""
    number = pod.metadata.uid[-12:]
    return f"{number:a>64}", f"{number:b>64}"


def _observed(pod: Pod) -> ObservedPod:
    meta = pod.metadata
    sandbox_id, container_id = _ids(pod)
    sandbox = ObservedSandbox(
        id=sandbox_id,
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        attempt=0,
        ready=True,
        created_at=1,
    )
    container = ObservedContainer(
        id=container_id,
        name=CONTAINER,
        sandbox_id=sandbox_id,
        state=ObservedState.RUNNING,
        started_at=1,
    )
    return ObservedPod(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        observed_at=0,
        sandboxes=(sandbox,),
        containers=(container,),
    )


@contextmanager
def _cgroups(tree: CgroupTree, pods: Sequence[Pod]) -> Iterator[None]:
    """The cgroups of pods while the body runs."""
    made: list[Path] = []
    try:
        for pod in pods:
            name = pod_cgroup_name(pod, CGROUP_ROOT)
            for child in (name, *(name.child(each) for each in _ids(pod))):
                for folder in tree.folders(child.cgroupfs_path):
                    folder.mkdir(parents=True, exist_ok=True)
                    made.append(folder)
        yield
    finally:
        for root in tree.folders(kubepods_name(CGROUP_ROOT).cgroupfs_path):
            made += (root.parent, root, *(each for each in root.glob("*") if each.is_dir()))
        for folder in sorted(set(made), key=lambda each: len(each.parts), reverse=True):
            with suppress(OSError):
                folder.rmdir()


def _provider(tree: CgroupTree, pods: Sequence[Pod], folder: Path) -> StatsProvider:
    """The provider of statistics, which has no need of a runtime: all containers have cgroups."""
    observed = [_observed(pod) for pod in pods]
    return StatsProvider(
        StatsSources(
            client=cast("RuntimeClient", None),
            clock=SystemClock(),
            reader=CgroupReader(tree=tree, cgroup_root=CGROUP_ROOT),
            pods=lambda: observed,
            paths=lambda pod: PodPaths(
                uid=pod.uid, namespace=pod.namespace, volumes=folder, logs=folder
            ),
            processes=dict,
            root_folder=folder,
            images_on_disk=False,
            volume_seconds=60,
            of_drivers=lambda: (),
        )
    )
