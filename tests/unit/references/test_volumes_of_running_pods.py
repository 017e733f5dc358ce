"""From a change at the API server to the file that a running pod reads, within a second."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import evolve
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from tests.unit.references.cluster import Cluster, open_cluster
from tests.unit.references.pods import pod_with
from trio_kubelet.k8s import (
    ConfigMapProjection,
    Container,
    Pod,
    ProjectedVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from trio_kubelet.volumes import PodFolders, local_volumes
from trio_kubelet.volumes.volumes import Volumes

WITHIN_SECONDS = 1.0
PROJECTED = Volume(
    name="all",
    projected=ProjectedVolumeSource(
        sources=(
            VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token")),
            VolumeProjection(config_map=ConfigMapProjection(name="settings")),
        )
    ),
)


def mounting(pod: Pod) -> Pod:
    """The pod with a container that mounts all of its volumes."""
    mounts = tuple(VolumeMount(name=volume.name) for volume in pod.spec.volumes)
    containers = (Container(name="c", volume_mounts=mounts),)
    return evolve(pod, spec=evolve(pod.spec, containers=containers))


@asynccontextmanager
async def running(cluster: Cluster, root: Path, pod: Pod) -> AsyncIterator[dict[str, Path]]:
    """A pod whose task prepares its volumes, and again whenever it is told."""
    volumes = local_volumes(
        PodFolders(root),
        lambda pod: 1 << 20,
        data=cluster.references,
        clock=TrioClock(),
        privileged=False,
    )
    cluster.references.register(pod)
    mounted = await volumes.prepare(pod)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prepare_when_told, cluster, volumes, pod)
        yield {name: Path(each.host_path) for name, each in mounted.items()}
        nursery.cancel_scope.cancel()


async def prepare_when_told(cluster: Cluster, volumes: Volumes, pod: Pod) -> None:
    while True:
        if await cluster.told.wait(math.inf) == [pod.metadata.uid]:
            await volumes.prepare(pod)


async def until(condition: Callable[[], object], within_seconds: float) -> None:
    with trio.fail_after(within_seconds):
        while not condition():  # noqa: ASYNC110 - the disk announces nothing
            await trio.sleep(0.01)


async def test_a_change_reaches_the_files_of_a_running_pod(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1", b="x")
        pod = mounting(pod_with("u1", config_map="settings"))
        async with running(cluster, tmp_path, pod) as paths:
            await trio.sleep(5)
            cluster.put_map("settings", a="2", c="y")
            await until(lambda: (paths["cm"] / "a").read_text() == "2", WITHIN_SECONDS)
            assert (paths["cm"] / "c").read_text() == "y"
            assert not (paths["cm"] / "b").exists()


async def test_a_change_after_an_outage_reaches_the_files(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        pod = mounting(pod_with("u1", config_map="settings"))
        async with running(cluster, tmp_path, pod) as paths:
            await trio.sleep(5)
            cluster.server.go_away()
            cluster.put_map("settings", a="2")
            await trio.sleep(300)
            assert (paths["cm"] / "a").read_text() == "1"
            cluster.server.come_back()
            await until(lambda: (paths["cm"] / "a").read_text() == "2", 60)


async def test_a_renewed_token_reaches_the_files_with_the_next_sync(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_cluster() as cluster:
        cluster.put_map("settings", a="1")
        pod = mounting(pod_with("u1", volumes=(PROJECTED,)))
        async with running(cluster, tmp_path, pod) as paths:
            token = paths["all"] / "token"
            first = token.read_text()
            await trio.sleep(3600 * 0.8)
            cluster.told(pod.metadata.uid)  # as the pod's periodic sync would
            await until(lambda: token.read_text() != first, WITHIN_SECONDS)
            assert (paths["all"] / "a").read_text() == "1"
