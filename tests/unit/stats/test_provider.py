"""What readers get, on a cgroup tree of files and on a runtime without a kernel."""

import json
import shutil
import sys
import threading
from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.unit.stats.kernel import CONTAINER, MI, POD_CGROUP, UID, write_cgroup
from tests.unit.stats.reading import Node, reading
from trio_kubelet.csi import MeasuredVolume, VolumeOfPod
from trio_kubelet.csi.driver import VolumeUsage
from trio_kubelet.server import Request, route_requests
from trio_kubelet.stats import (
    summary,
)
from trio_kubelet.stats.summary import stats_routes
from trio_kubelet.stats.values import Stats, SwapUsage


async def test_usage_comes_from_cgroups_and_asks_the_runtime_nothing(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        stats = await node.provider.usage()
        [pod] = stats.pods
        [container] = pod.containers
        assert container.usage.cpu is not None
        assert container.usage.cpu.total_ns == 2_000_000_000
        assert pod.usage.memory is not None
        assert pod.usage.memory.working_set == 30 * MI
        assert pod.cgroup == POD_CGROUP
        assert pod.sandbox is not None
        assert node.runtime.asked == 0


async def test_a_container_without_a_cgroup_is_what_the_runtime_says(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        shutil.rmtree(node.cgroups / POD_CGROUP.lstrip("/"))
        [pod] = (await node.provider.usage()).pods
        [container] = pod.containers
        assert container.usage.memory is not None
        assert container.usage.memory.working_set == 3 * MI
        assert pod.usage.memory == container.usage.memory


async def test_without_cgroups_the_machine_is_still_known(tmp_path: Path) -> None:
    async with reading(tmp_path, with_cgroups=False) as node:
        stats = await node.provider.usage()
        assert stats.node.usage.memory is not None
        assert stats.node.usage.cpu is not None
        assert len(stats.pods) == 1


async def test_a_runtime_that_is_away_leaves_what_cgroups_say(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        node.runtime.is_down = True
        stats = await node.provider.full()
        assert stats.problems.keys() == {"runtime"}
        [container] = stats.pods[0].containers
        assert container.usage.cpu is not None
        assert container.root is None


async def test_concurrent_readers_share_one_reading(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        async with trio.open_nursery() as readers:
            for _ in range(10):
                readers.start_soon(node.provider.usage)
        assert len(node.reads) == 1


async def test_a_deeper_reading_serves_who_wants_less(tmp_path: Path) -> None:
    async with reading(tmp_path) as node:
        await node.provider.detailed_usage()
        await node.provider.usage()
        assert len(node.reads) == 1


async def test_the_first_rate_takes_a_second_reading(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with reading(tmp_path) as node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use_more_cpu, node)
            stats = await node.provider.rated_usage()
        cpu = stats.pods[0].containers[0].usage.cpu
        assert cpu is not None
        assert cpu.nano_cores is not None
        assert len(node.reads) == 2


async def use_more_cpu(node: Node) -> None:
    await trio.sleep(0.5)
    path = f"{POD_CGROUP}/cri-containerd-{CONTAINER}.scope"
    write_cgroup(node.cgroups, path, cpu_seconds=3, memory=30 * MI)


async def test_the_summary_has_the_volumes_that_drivers_tell_of_with_their_claims(
    tmp_path: Path,
) -> None:
    volume = VolumeOfPod(
        driver="d",
        volume_id="h",
        path="/v",
        pod_uid=UID,
        namespace="default",
        name="v",
        claim="data",
    )
    usage = VolumeUsage(capacity=100, available=60, used=40)
    other = evolve(volume, pod_uid="other")
    measured = [MeasuredVolume(volume=each, usage=usage, time_ns=5) for each in (volume, other)]
    async with reading(tmp_path, of_drivers=measured) as node:
        told = summary(await node.provider.full(), "here")["pods"][0]
    assert told["volume"] == [
        {
            "time": "1970-01-01T00:00:00Z",
            "capacityBytes": 100,
            "availableBytes": 60,
            "usedBytes": 40,
            "name": "v",
            "pvcRef": {"name": "data", "namespace": "default"},
        }
    ]
    assert told["ephemeral-storage"]["usedBytes"] < 9 * MI


async def test_disks_are_part_of_all_that_is_known(tmp_path: Path) -> None:
    volume = tmp_path / "pods" / UID / "volumes/kubernetes.io~empty-dir/data"
    volume.mkdir(parents=True)
    (volume / "file").write_bytes(bytes(MI))
    async with reading(tmp_path) as node:
        stats = await node.provider.full()
        [pod] = stats.pods
        assert [each.name for each in pod.volumes] == ["data"]
        assert pod.containers[0].root is not None
        assert pod.containers[0].root.used == 7 * MI
        assert pod.ephemeral_storage is not None
        assert (pod.ephemeral_storage.used or 0) >= 8 * MI
        assert stats.node.root is not None
        assert stats.node.images is not None
        assert stats.node.images.used == 9 * MI
        told = summary(stats, "here")["pods"][0]
        assert told["ephemeral-storage"]["capacityBytes"] == stats.node.root.capacity
        assert told["podRef"] == {"name": "web", "namespace": "default", "uid": UID}


@pytest.mark.parametrize("short", [True, False])
async def test_what_is_not_known_is_left_out_of_the_summary(tmp_path: Path, short: bool) -> None:
    async with reading(tmp_path) as node:
        told = summary(await node.provider.usage(), "here", only_cpu_and_memory=short)
        assert "usageNanoCores" not in told["node"]["cpu"]
        assert "rootfs" not in told["pods"][0]["containers"][0]
        assert ("rlimit" in told["node"]) is not short


@pytest.mark.parametrize("short", [True, False])
async def test_the_summary_of_cpu_and_memory_has_the_swap_of_the_node_alone(
    tmp_path: Path, short: bool
) -> None:
    async with reading(tmp_path) as node:
        stats = await node.provider.usage()
        swap = SwapUsage(usage=MI, limit=3 * MI)
        used = evolve(stats.node, usage=evolve(stats.node.usage, swap=swap))
        pods = [evolve(pod, usage=evolve(pod.usage, swap=swap)) for pod in stats.pods]
        told = summary(
            evolve(stats, node=used, pods=tuple(pods)), "here", only_cpu_and_memory=short
        )
    assert told["node"]["swap"]["swapUsageBytes"] == MI
    assert told["node"]["swap"]["swapAvailableBytes"] == 2 * MI
    assert ["swap" in pod for pod in told["pods"]] == [not short]


async def test_the_summary_is_written_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[threading.Thread] = []

    def written(stats: Stats, node_name: str, **options: bool) -> object:
        writers.append(threading.current_thread())
        return summary(stats, node_name, **options)

    monkeypatch.setattr(sys.modules[stats_routes.__module__], "summary", written)
    async with reading(tmp_path) as node:
        monkeypatch.setattr(node.provider, "full", node.provider.usage)
        handle = route_requests(stats_routes(node.provider, "here", node.writers))
        answer = await handle(Request(method="GET", path="/stats/summary"))
        assert answer is not None
        assert isinstance(answer.body, bytes)
        assert json.loads(answer.body)["node"]["nodeName"] == "here"
    assert writers
    assert threading.main_thread() not in writers


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_the_root_of_statistics_is_a_folder_with_nothing_at_it(
    tmp_path: Path, method: str
) -> None:
    async with reading(tmp_path) as node:
        handle = route_requests(stats_routes(node.provider, "here", node.writers))
        sent_on = await handle(Request(method=method, path="/stats"))
        assert sent_on is not None
        assert (sent_on.status, sent_on.headers) == (307, (("Location", "/stats/"),))
        at_it = await handle(Request(method=method, path="/stats/"))
        assert at_it is not None
        assert (at_it.status, at_it.body) == (404, b"404: Page Not Found")
        refused = await handle(Request(method="PUT", path="/stats/summary"))
        assert refused is not None
        assert refused.status == 405
