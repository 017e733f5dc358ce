"""Memory of the QoS classes: protected where the kernel can, and kept from lower classes."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.unit.resources.fake_cgroups import FakeV2
from tests.unit.resources.pods import container, pod, requirements
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.errors import PreparationError
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.resources import CgroupDriver, Cgroups
from trio_kubelet.resources.cgroup_config import pod_cgroup_config, qos_cgroup_configs
from trio_kubelet.resources.pod_cgroups import PodCgroups
from trio_kubelet.resources.qos_memory import MemoryReserve, class_limits

GI = 1 << 30
MI = 1 << 20
BURSTABLE, BEST_EFFORT = PodQOSClass.BURSTABLE, PodQOSClass.BEST_EFFORT
GUARANTEED = PodQOSClass.GUARANTEED
TIERED = KubeletConfiguration(memory_reservation_policy="TieredReservation")
PLAIN = KubeletConfiguration()
G = pod(container("cpu=1 memory=512Mi", "cpu=1 memory=512Mi"), uid="g")
B = pod(container("memory=128Mi", "memory=1Gi"), uid="b")
E = pod(container(), uid="e")


@pytest.mark.parametrize(
    ("asked_for", "protected"),
    [
        (G, (512 * MI, 0)),
        (B, (0, 128 * MI)),
        (E, (None, None)),
        (pod(container(), container("memory=64Mi"), overhead="memory=16Mi"), (0, 80 * MI)),
        (pod(container(), level=requirements("memory=256Mi cpu=1")), (0, 256 * MI)),
    ],
)
def test_a_pods_request_is_protected_by_its_class(
    asked_for: Pod, protected: tuple[int | None, int | None]
) -> None:
    config = pod_cgroup_config(asked_for, TIERED)
    assert (config.memory_min_bytes, config.memory_low_bytes) == protected
    config = pod_cgroup_config(asked_for, PLAIN)
    assert (config.memory_min_bytes, config.memory_low_bytes) == (None, None)


def test_the_cgroups_above_have_the_sums_or_they_would_leave_pods_without_protection() -> None:
    configs = qos_cgroup_configs([G, G, B, E], TIERED)
    assert {
        qos: (config.memory_min_bytes, config.memory_low_bytes) for qos, config in configs.items()
    } == {
        GUARANTEED: (1152 * MI, 128 * MI),
        BURSTABLE: (0, 128 * MI),
        BEST_EFFORT: (0, 0),
    }


@pytest.mark.parametrize(
    ("percent", "limits"),
    [
        (0, {BURSTABLE: 4 * GI, BEST_EFFORT: 4 * GI}),
        (50, {BURSTABLE: 3 * GI, BEST_EFFORT: 2 * GI + GI // 2}),
        (100, {BURSTABLE: 2 * GI, BEST_EFFORT: GI}),
    ],
)
def test_lower_classes_may_not_use_a_share_of_what_higher_ones_asked_for(
    percent: int, limits: Mapping[PodQOSClass, int]
) -> None:
    requests = {GUARANTEED: 2 * GI, BURSTABLE: GI, BEST_EFFORT: 0}
    assert class_limits(requests, MemoryReserve(percent=percent, allocatable_bytes=4 * GI)) == (
        limits
    )


def test_of_a_node_that_is_overcommitted_nothing_is_left_for_lower_classes() -> None:
    requests = {GUARANTEED: 6 * GI, BURSTABLE: GI, BEST_EFFORT: 0}
    limits = class_limits(requests, MemoryReserve(percent=100, allocatable_bytes=4 * GI))
    assert limits == {BURSTABLE: 0, BEST_EFFORT: 0}


class Node:
    """Cgroups of files; `active` are the pods that hold resources."""

    def __init__(self, root: Path) -> None:
        self.root = root
        names = ("kubepods", "kubepods/burstable", "kubepods/besteffort")
        pods = ("kubepods/podg", "kubepods/burstable/podb")
        self.tree = FakeV2(root, "cpu memory", (*names, *pods)).tree
        self.active: list[Pod] = []

    def cgroups(
        self, configuration: KubeletConfiguration, reserve: MemoryReserve | None = None
    ) -> Cgroups:
        return Cgroups(self.tree, configuration, driver=CgroupDriver.CGROUPFS, reserve=reserve)

    def pods(self, cgroups: Cgroups) -> PodCgroups:
        return PodCgroups(cgroups, lambda: self.active)

    def value(self, name: str) -> str:
        return (self.root / "kubepods" / name).read_text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_protection_follows_the_pods_and_goes_with_the_setting(node: Node) -> None:
    cgroups = node.cgroups(TIERED)
    await cgroups.start()
    pods = node.pods(cgroups)
    for each in (G, B):
        node.active.append(each)
        await pods.ensure(each)
    assert node.value("memory.min") == str(640 * MI)
    assert node.value("memory.low") == str(128 * MI)
    assert node.value("burstable/memory.low") == str(128 * MI)
    assert node.value("podg/memory.min") == str(512 * MI)
    assert node.value("burstable/podb/memory.low") == str(128 * MI)

    cgroups = node.cgroups(PLAIN)
    await cgroups.start()
    await node.pods(cgroups).ensure(G)
    for name in ("memory.min", "memory.low", "burstable/memory.low", "podg/memory.min"):
        assert node.value(name) == "0", name


async def test_an_agent_that_is_started_leaves_the_protection_of_pods_it_does_not_know_yet(
    node: Node,
) -> None:
    (node.root / "kubepods/memory.min").write_text("77")
    await node.cgroups(TIERED).start()
    assert node.value("memory.min") == "77"


async def test_lower_classes_are_limited_as_pods_come_and_what_failed_is_tried_each_minute(
    node: Node, autojump_clock: MockClock
) -> None:
    cgroups = node.cgroups(PLAIN, MemoryReserve(percent=100, allocatable_bytes=GI))
    pods = node.pods(cgroups)
    node.active.append(G)
    (node.root / "kubepods/burstable/memory.current").write_text("0")
    refused = node.root / "kubepods/burstable/memory.max"
    refused.mkdir()
    with pytest.raises(PreparationError):
        await pods.ensure(G)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pods.tend_classes)
        await trio.sleep(90)
        (node.root / "kubepods/burstable/memory.current").write_text("what")
        await trio.sleep(60)
        refused.rmdir()
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert node.value("burstable/memory.max") == str(512 * MI)
    assert node.value("besteffort/memory.max") == str(512 * MI)
