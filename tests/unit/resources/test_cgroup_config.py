from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.resources.pods import container, pod, requirements
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import Pod, PodQOSClass
from trio_kubelet.resources import (
    CgroupConfig,
    milli_cpu_to_quota,
    milli_cpu_to_shares,
)
from trio_kubelet.resources.cgroup_config import cpu_weight, pod_cgroup_config, qos_cgroup_configs

CONFIGURATION = KubeletConfiguration()
MI = 1 << 20


@pytest.mark.parametrize(
    ("milli", "shares"), [(0, 2), (1, 2), (2, 2), (100, 102), (1000, 1024), (10**9, 262_144)]
)
def test_shares(milli: int, shares: int) -> None:
    assert milli_cpu_to_shares(milli) == shares


@pytest.mark.parametrize(
    ("milli", "period", "quota"),
    [(0, 100_000, 0), (200, 100_000, 20_000), (1, 100_000, 1000), (500, 10_000, 5000)],
)
def test_quota_is_at_least_a_millisecond(milli: int, period: int, quota: int) -> None:
    assert milli_cpu_to_quota(milli, period) == quota


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(0, 0), (2, 1), (102, 17), (512, 59), (1024, 100), (262_144, 10_000), (10**6, 10_000)],
)
def test_weight_maps_smallest_default_and_largest_onto_each_other(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


@given(st.integers(2, 262_144), st.integers(2, 262_144))
def test_more_shares_never_weigh_less(one: int, other: int) -> None:
    assert (cpu_weight(one) <= cpu_weight(other)) or one > other


@pytest.mark.parametrize(
    ("given_pod", "expected"),
    [
        pytest.param(pod(container()), CgroupConfig(cpu_shares=2), id="best effort"),
        pytest.param(
            pod(container("cpu=100m memory=32Mi", "cpu=200m memory=64Mi")),
            CgroupConfig(
                cpu_shares=102,
                cpu_quota_us=20_000,
                cpu_period_us=100_000,
                memory_limit_bytes=64 * MI,
            ),
            id="burstable with all limits",
        ),
        pytest.param(
            pod(container("cpu=100m", "cpu=200m memory=64Mi"), container("cpu=1", "cpu=1")),
            CgroupConfig(cpu_shares=1126, cpu_quota_us=120_000, cpu_period_us=100_000),
            id="memory is not limited where one container has no limit",
        ),
        pytest.param(
            pod(container("cpu=1", "cpu=1"), init=(container("cpu=1"),)),
            CgroupConfig(cpu_shares=1024),
            id="an init container without a limit counts, too",
        ),
        pytest.param(
            pod(container("cpu=1", ""), level=requirements("", "memory=1Mi cpu=2")),
            CgroupConfig(
                cpu_shares=1024, cpu_quota_us=200_000, cpu_period_us=100_000, memory_limit_bytes=MI
            ),
            id="limits at the pod's level",
        ),
        pytest.param(
            pod(container("cpu=1 memory=1Mi", "cpu=1 memory=1Mi")),
            CgroupConfig(
                cpu_shares=1024, cpu_quota_us=100_000, cpu_period_us=100_000, memory_limit_bytes=MI
            ),
            id="guaranteed",
        ),
    ],
)
def test_pod_cgroup(given_pod: Pod, expected: CgroupConfig) -> None:
    assert pod_cgroup_config(given_pod, CONFIGURATION) == expected


def test_without_cfs_quota_the_limit_is_lifted() -> None:
    config = pod_cgroup_config(
        pod(container("cpu=1 memory=1Mi", "cpu=1 memory=1Mi")),
        KubeletConfiguration(cpu_cfs_quota=False),
    )
    assert config.cpu_quota_us == -1


def test_pids_are_limited_when_the_node_says_so() -> None:
    limits = {
        limit: pod_cgroup_config(
            pod(container()), KubeletConfiguration(pod_pids_limit=limit)
        ).pids_limit
        for limit in (64, 0, -1)
    }
    assert limits == {64: 64, 0: None, -1: None}


def test_the_period_of_quotas_is_the_nodes() -> None:
    configuration = KubeletConfiguration(cpu_cfs_quota_period=timedelta(milliseconds=10))
    limited = pod(container("cpu=1 memory=1Mi", "cpu=1 memory=1Mi"))
    config = pod_cgroup_config(limited, configuration)
    assert (config.cpu_quota_us, config.cpu_period_us) == (10_000, 10_000)


def test_huge_pages_are_limited_for_every_size_of_the_node() -> None:
    config = pod_cgroup_config(
        pod(container("hugepages-2Mi=4Mi cpu=1", "hugepages-2Mi=4Mi cpu=1")),
        CONFIGURATION,
        hugepage_sizes=(2 * MI, 1024 * MI),
    )
    assert config.hugepage_limits == {2 * MI: 4 * MI, 1024 * MI: 0}


def test_qos_cgroups_weigh_what_their_pods_ask_for() -> None:
    pods = (
        pod(container("cpu=1")),
        pod(container("cpu=500m")),
        pod(container()),
        pod(container("cpu=4 memory=1Mi", "cpu=4 memory=1Mi")),
    )
    configs = qos_cgroup_configs(pods, CONFIGURATION, hugepage_sizes=(2 * MI,))
    assert configs[PodQOSClass.BURSTABLE].cpu_shares == 1536
    assert configs[PodQOSClass.BEST_EFFORT].cpu_shares == 2
    assert configs[PodQOSClass.BURSTABLE].hugepage_limits == {2 * MI: 1 << 62}
    assert configs[PodQOSClass.GUARANTEED] == CgroupConfig()
