"""What those get who decide by statistics: about evictions, and the node's pressures."""

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.trio_clock import TrioClock
from tests.unit.stats.kernel import CONTAINER, MI, POD_CGROUP, UID, write_cgroup
from tests.unit.stats.reading import observed, reading
from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec
from trio_kubelet.runtime.config.names import POD_UID_LABEL
from trio_kubelet.runtime.observed import (
    ObservedState,
)
from trio_kubelet.stats import (
    disk_usage,
    provider,
)
from trio_kubelet.stats.disk_usage import DiskUsages, PodDisk
from trio_kubelet.stats.provider import DEADLINE_SECONDS, DECISION_SECONDS
from trio_kubelet.stats.values import Filesystem


async def test_the_layer_of_a_container_that_has_ended_counts_as_its_pods_use_of_the_disk(
    tmp_path: Path,
) -> None:
    pod = observed()
    ended = evolve(pod.containers[0], id="e" * 64, name="init", state=ObservedState.EXITED)
    async with reading(tmp_path, pod=evolve(pod, containers=(*pod.containers, ended))) as node:
        node.runtime.layers = {CONTAINER: 7 * MI, ended.id: 100 * MI}
        [told] = (await node.provider.usage_since(trio.current_time(), (), disks=True)).pods
        assert [each.name for each in told.containers] == ["main"]
        assert told.layers is not None
        assert told.layers.used == 107 * MI
        assert told.ephemeral_storage is not None
        assert told.ephemeral_storage.used == 107 * MI


async def test_the_node_alone_is_read_without_its_pods(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        write_cgroup(node.cgroups, "/kubepods.slice", cpu_seconds=5, memory=40 * MI)
        (node.cgroups / "kubepods.slice/memory.max").write_text(f"{100 * MI}\n")
        (node.cgroups / "kubepods.slice/kubepods-besteffort.slice/memory.current").unlink()
        found = await node.provider.node_since(trio.current_time())
        assert found.pods is not None
        assert found.pods.memory is not None
        assert (found.pods.memory.working_set, found.pods.memory.limit) == (39 * MI, 100 * MI)
        assert found.node.memory_bytes == 8_000_000 << 10
        assert found.node.available_memory_bytes == 6_000_000 << 10
        assert found.node.root is not None
        assert found.node.root.device == os.stat(tmp_path).st_dev  # noqa: PTH116
        assert node.reads == []
        assert node.runtime.asked == 0


async def test_a_disk_that_hangs_delays_the_memory_of_a_node_by_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hang(*_arguments: object) -> dict[str, Filesystem]:
        answers.wait()
        return {}

    monkeypatch.setattr("trio_kubelet.stats.provider.filesystems_of", hang)
    async with reading(tmp_path) as node:
        with trio.fail_after(DEADLINE_SECONDS - 1):
            found = await node.provider.node_since(trio.current_time())
        answers.set()
        assert found.node.usage.memory is not None
        assert found.node.root is None


async def test_a_disk_of_images_that_hangs_does_not_hide_the_nodes_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, measure = threading.Event(), provider.filesystems_of
    images = tmp_path / "images"
    images.mkdir()

    def hang(folders: Iterable[str], now_ns: int) -> Mapping[str, Filesystem]:
        if str(images) in folders:
            answers.wait()
        return measure(folders, now_ns)

    monkeypatch.setattr(provider, "filesystems_of", hang)
    monkeypatch.setattr(provider, "DEADLINE_SECONDS", 0.2)
    async with reading(tmp_path, images_on_disk=True) as node:
        node.runtime.images_at = str(images)
        at_first = await node.provider.node_since(trio.current_time())
        later = await node.provider.node_since(trio.current_time())
        answers.set()
        for found in (at_first, later):
            assert found.node.root is not None
            assert found.node.root.capacity is not None
            assert found.node.images is None or found.node.images.capacity is None


@pytest.mark.parametrize("every_seconds", [10, 3600])
async def test_who_decides_by_layers_waits_until_the_runtime_has_counted_them_but_not_for_long(
    tmp_path: Path, autojump_clock: MockClock, every_seconds: float
) -> None:
    async with reading(tmp_path) as node:
        node.runtime.counts_every_seconds = every_seconds
        await trio.sleep(1)
        began_at, began_ns = trio.current_time(), TrioClock().now_ns()
        stats = await node.provider.usage_since(began_at, (), disks=True, fresh_layers=True)
        layer = stats.pods[0].containers[0].root
        assert layer is not None
        assert (layer.time_ns >= began_ns) is (every_seconds == 10)
        assert trio.current_time() - began_at <= 13


@pytest.mark.parametrize("used", [(1 << 64) - 1, 1 << 60])
async def test_a_layer_that_is_larger_than_its_disk_counts_as_unknown(
    tmp_path: Path, used: int
) -> None:
    async with reading(tmp_path, images_on_disk=True) as node:
        node.runtime.layers = {CONTAINER: used}
        node.runtime.images_at = str(tmp_path)
        [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=True)).pods
        assert pod.layers is None
        assert pod.containers[0].root is None
        assert pod.ephemeral_storage is not None
        assert pod.ephemeral_storage.used == 0


async def test_layers_and_files_that_take_long_are_waited_for_at_the_same_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_counted(*_arguments: object) -> Mapping[str, PodDisk]:
        await trio.sleep(DECISION_SECONDS)
        return {}

    async with reading(tmp_path) as node:
        node.runtime.counts_every_seconds = 3600
        monkeypatch.setattr(DiskUsages, "get", never_counted)
        await trio.sleep(1)
        began_at = trio.current_time()
        await node.provider.usage_since(
            began_at, (), disks=True, fresh_files=True, fresh_layers=True
        )
        assert trio.current_time() - began_at <= DECISION_SECONDS + 1


async def test_who_decides_by_memory_asks_the_runtime_for_no_container_that_has_just_ended(
    tmp_path: Path,
) -> None:
    async with reading(tmp_path) as node:
        shutil.rmtree(node.cgroups / f"{POD_CGROUP.lstrip('/')}/cri-containerd-{CONTAINER}.scope")
        [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=False)).pods
        assert pod.usage.memory is not None
        assert pod.usage.memory.working_set == 30 * MI
        assert node.runtime.asked == 0
        await node.provider.usage()
        assert node.runtime.asked == 1


async def test_who_decides_waits_for_a_walk_and_knows_of_files_that_it_could_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_usage.WALK_SECONDS < DECISION_SECONDS
    monkeypatch.setattr(disk_usage, "WALK_SECONDS", -1.0)
    monkeypatch.setattr(disk_usage, "_CHECK_EVERY", 1)
    volume = tmp_path / "pods" / UID / "volumes/kubernetes.io~empty-dir/data"
    volume.mkdir(parents=True)
    (volume / "file").write_bytes(bytes(MI))
    async with reading(tmp_path) as node:
        [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=True)).pods
        assert not pod.is_counted
        [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=False)).pods
        assert pod.is_counted


async def test_a_pod_whose_sandbox_has_ended_hides_nothing_from_who_decides(tmp_path: Path) -> None:
    volume = tmp_path / "pods" / UID / "volumes/kubernetes.io~empty-dir/data"
    volume.mkdir(parents=True)
    (volume / "file").write_bytes(bytes(MI))
    pod = observed()
    ended = evolve(pod, sandboxes=(evolve(pod.sandboxes[0], ready=False),))
    async with reading(tmp_path, pod=ended) as node:
        [told] = (await node.provider.usage_since(trio.current_time(), (), disks=True)).pods
        assert told.usage.memory is not None
        assert told.usage.memory.working_set == 30 * MI
        assert told.ephemeral_storage is not None
        assert (told.ephemeral_storage.used or 0) >= MI
        assert (await node.provider.full()).pods == ()


async def test_a_pod_that_is_still_being_started_hides_nothing_from_who_decides(
    tmp_path: Path,
) -> None:
    """Nobody has looked at it in the runtime yet, nor at its container, which runs."""
    volume = tmp_path / "pods" / UID / "volumes/kubernetes.io~empty-dir/data"
    volume.mkdir(parents=True)
    (volume / "file").write_bytes(bytes(MI))
    pod = Pod(metadata=ObjectMeta(uid=UID, name="web", namespace="default"), spec=PodSpec())
    async with reading(tmp_path, is_seen=False) as node:
        node.runtime.labels = {POD_UID_LABEL: UID}
        [told] = (await node.provider.usage_since(trio.current_time(), [pod], disks=True)).pods
        assert told.usage.memory is not None
        assert told.usage.memory.working_set == 30 * MI
        assert told.layers is not None
        assert told.layers.used == 7 * MI
        assert told.ephemeral_storage is not None
        assert (told.ephemeral_storage.used or 0) >= 8 * MI
        assert (await node.provider.full()).pods == ()


async def test_who_needs_newer_figures_gets_them(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        before = await node.provider.usage()
        write_cgroup(node.cgroups, POD_CGROUP, cpu_seconds=3, memory=51 * MI)
        assert await node.provider.usage() == before
        [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=False)).pods
        assert pod.usage.memory is not None
        assert pod.usage.memory.working_set == 50 * MI
        assert node.runtime.asked == 0


async def test_who_decides_gets_new_figures_of_pods_without_cgroups_too(tmp_path: Path) -> None:
    async with reading(tmp_path, with_cgroups=False) as node:
        for memory in (10 * MI, 90 * MI):
            node.runtime.sandbox_memory = memory
            [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=False)).pods
            assert pod.usage.memory is not None
            assert pod.usage.memory.working_set == memory
            assert pod.usage.tasks == 4


async def test_disks_are_asked_for_only_by_who_needs_them(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        [pod] = (await node.provider.usage_since(trio.current_time(), (), disks=True)).pods
        assert node.runtime.asked == 1
        assert pod.ephemeral_storage is not None
        [again] = (await node.provider.usage_since(trio.current_time(), (), disks=True)).pods
        assert node.runtime.asked == 2
        assert again.containers[0].root is not None
        assert again.containers[0].root.used == 7 * MI
