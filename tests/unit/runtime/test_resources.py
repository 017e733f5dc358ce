from datetime import timedelta

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.node_facts import configured, gated, node_facts
from trio_kubelet.config.parts import MemorySwapConfiguration
from trio_kubelet.k8s import (
    Container,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from trio_kubelet.resource_managers import ContainerPlacement
from trio_kubelet.rpc import is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.resources import (
    container_resources,
    oom_score_adj,
    resource_update,
    sandbox_overhead,
    sandbox_resources,
)
from trio_kubelet.runtime.node_facts import NodeFacts

GI = 1 << 30
V1 = node_facts(memory_capacity_bytes=8 * GI, cgroup_v2=False)
V2 = node_facts(memory_capacity_bytes=8 * GI, swap_capacity_bytes=2 * GI)


def container(requests: str = "", limits: str = "", name: str = "c", **fields: str) -> Container:
    def amounts(text: str) -> dict[str, Quantity]:
        pairs = (pair.split("=") for pair in text.split())
        return {name: Quantity(amount) for name, amount in pairs}

    resources = ResourceRequirements(requests=amounts(requests), limits=amounts(limits))
    return Container(name=name, resources=resources, **fields)  # type: ignore[arg-type]


def pod(*containers: Container, **spec: object) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="p", namespace="n", uid="u"),
        spec=PodSpec(containers=containers, **spec),  # type: ignore[arg-type]
    )


def resources(container: Container, node: NodeFacts = V1) -> cri.LinuxContainerResources:
    return container_resources(pod(container), container, node)


NOT_SET = Container(name="c")
GUARANTEED = container("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")
BURSTABLE = container("cpu=100m memory=2Gi", "memory=4Gi")


@pytest.mark.parametrize(
    ("container", "shares", "quota", "memory"),
    [
        (NOT_SET, 2, 0, 0),
        (container("cpu=1m"), 2, 0, 0),
        (container("cpu=100m"), 102, 0, 0),
        (container("cpu=2"), 2048, 0, 0),
        (container("cpu=0", "cpu=500m"), 2, 50000, 0),
        (container("", "cpu=500m"), 512, 50000, 0),
        (container("cpu=1m", "cpu=1m memory=64Mi"), 2, 1000, 64 << 20),
        (container("cpu=100m", "cpu=200m memory=1k"), 102, 20000, 1000),
    ],
)
def test_shares_quota_and_memory_follow_from_requests_and_limits(
    container: Container, shares: int, quota: int, memory: int
) -> None:
    made = resources(container)
    assert (made.cpu_period, made.cpu_shares) == (100_000, shares)
    assert (made.cpu_quota, made.memory_limit_in_bytes) == (quota, memory)


def test_quotas_are_of_the_configured_period() -> None:
    node = configured(V1, cpu_cfs_quota_period=timedelta(milliseconds=10))
    made = resources(container("", "cpu=500m"), node)
    assert (made.cpu_period, made.cpu_quota) == (10_000, 5_000)


def test_without_cfs_quota_there_is_neither_period_nor_quota() -> None:
    made = resources(container("", "cpu=500m"), configured(V1, cpu_cfs_quota=False))
    assert (made.cpu_period, made.cpu_quota, made.cpu_shares) == (0, 0, 512)


def test_on_cgroup_v1_memory_and_swap_together_are_limited_to_the_memory() -> None:
    assert resources(BURSTABLE).memory_swap_limit_in_bytes == 4 * GI
    assert resources(NOT_SET).memory_swap_limit_in_bytes == 0
    without = evolve(V1, swap_controller=False)
    assert resources(BURSTABLE, without).memory_swap_limit_in_bytes == 0


def test_on_cgroup_v2_there_is_no_swap_and_a_container_dies_as_a_whole() -> None:
    made = resources(BURSTABLE, V2)
    assert made.unified == {"memory.oom.group": "1", "memory.swap.max": "0"}
    assert made.memory_swap_limit_in_bytes == 0


def test_single_processes_may_be_killed_where_that_is_configured() -> None:
    node = configured(evolve(V2, swap_controller=False), single_process_oom_kill=True)
    assert resources(BURSTABLE, node).unified == {}


@pytest.mark.parametrize(
    ("container", "critical", "swap"),
    [
        (BURSTABLE, False, str(GI // 2)),
        (BURSTABLE, True, "0"),
        (GUARANTEED, False, "0"),
        (NOT_SET, False, "0"),
        (container("cpu=1"), False, "0"),
        (container("memory=1Gi", "memory=1Gi"), False, "0"),
        (container("memory=16Gi"), False, "0"),
        (container("", "memory=1Gi"), False, "0"),
    ],
)
def test_limited_swap_is_shared_out_by_memory_among_burstable_containers(
    container: Container, critical: bool, swap: str
) -> None:
    node = configured(V2, memory_swap=MemorySwapConfiguration(swap_behavior="LimitedSwap"))
    owner = pod(container, priority=2_000_000_000 if critical else None)
    assert container_resources(owner, container, node).unified["memory.swap.max"] == swap


def test_huge_pages_are_limited_for_every_size_of_the_node() -> None:
    node = evolve(V1, hugepage_sizes=(2 << 20, GI))
    made = resources(container("", "hugepages-2Mi=4Mi"), node).hugepage_limits
    assert [(limit.page_size, limit.limit) for limit in made] == [("2MB", 4 << 20), ("1GB", 0)]


def test_huge_pages_of_the_pod_are_there_for_containers_that_ask_for_none_of_their_size() -> None:
    node = evolve(V1, hugepage_sizes=(2 << 20, GI))
    own = container("", "hugepages-2Mi=2Mi")
    whole = container("", "hugepages-2Mi=4Mi hugepages-1Gi=1Gi").resources
    made = container_resources(pod(own, resources=whole), own, node).hugepage_limits
    assert [(limit.page_size, limit.limit) for limit in made] == [("2MB", 2 << 20), ("1GB", GI)]


@pytest.mark.parametrize(
    ("container", "score"),
    [
        (GUARANTEED, -997),
        (NOT_SET, 1000),
        (container("cpu=1"), 999),
        (container("memory=1"), 999),
        (container("memory=2Gi"), 750),
        (container("memory=8Gi"), 3),
        (container("memory=80Gi"), 3),
    ],
)
def test_who_asked_for_more_of_the_node_is_killed_later(container: Container, score: int) -> None:
    assert oom_score_adj(pod(container), container, 8 * GI) == score


def test_only_node_critical_pods_are_as_safe_as_guaranteed_ones() -> None:
    vital = {"priority": 2_000_001_000, "priority_class_name": "system-node-critical"}
    assert oom_score_adj(pod(NOT_SET, **vital), NOT_SET, GI) == -997
    important = {"priority": 2_000_000_000, "priority_class_name": "system-cluster-critical"}
    assert oom_score_adj(pod(NOT_SET, **important), NOT_SET, GI) == 1000
    pretender = {"priority": 5, "priority_class_name": "system-node-critical"}
    assert oom_score_adj(pod(NOT_SET, **pretender), NOT_SET, GI) == 1000


def test_a_qos_class_once_given_stays() -> None:
    owner = evolve(pod(NOT_SET), status=PodStatus(qos_class="Guaranteed"))
    assert oom_score_adj(owner, NOT_SET, GI) == -997


def test_a_sidecar_is_at_least_as_safe_as_those_that_need_it() -> None:
    small = container("memory=1Gi", name="sidecar", restart_policy="Always")
    large = container("memory=6Gi", name="sidecar", restart_policy="Always")
    regular = container("memory=4Gi"), container("memory=2Gi", name="d")
    assert oom_score_adj(pod(*regular, init_containers=(small,)), small, 8 * GI) == 750
    assert oom_score_adj(pod(*regular, init_containers=(large,)), large, 8 * GI) == 250
    once = container("memory=1Gi", name="once")
    assert oom_score_adj(pod(*regular, init_containers=(once,)), once, 8 * GI) == 875


@given(st.integers(0, 1 << 45), st.integers(1, 1 << 43))
def test_burstable_scores_stay_between_guaranteed_and_best_effort(
    request_bytes: int, capacity: int
) -> None:
    burstable = container(f"cpu=1m memory={request_bytes}")
    assert 3 <= oom_score_adj(pod(burstable), burstable, capacity) <= 999


def test_memory_qos_throttles_below_the_limit_and_protects_by_tier() -> None:
    node = gated(evolve(V2, allocatable=lambda: {"memory": Quantity("6Gi")}), MemoryQoS=True)
    tiered = configured(node, memory_reservation_policy="TieredReservation")
    throttled = {"memory.high": str(int(2 * GI + 0.9 * 2 * GI) // 4096 * 4096)}
    plain = {"memory.oom.group": "1", "memory.swap.max": "0"}
    assert resources(BURSTABLE, node).unified == {**plain, **throttled}
    low = {"memory.low": str(2 * GI)}
    assert resources(BURSTABLE, tiered).unified == {**plain, **throttled, **low}
    assert resources(GUARANTEED, tiered).unified == {**plain, "memory.min": str(GI)}
    open_ended = resources(container("memory=2Gi"), node).unified["memory.high"]
    assert open_ended == str(int(2 * GI + 0.9 * 4 * GI) // 4096 * 4096)
    all_of_it = {"memory.high": str(int(0.9 * 6 * GI) // 4096 * 4096)}
    assert resources(NOT_SET, tiered).unified == {**plain, **all_of_it}


def test_a_container_that_is_resized_to_its_limit_is_throttled_no_more() -> None:
    node = gated(evolve(V2, allocatable=lambda: {"memory": Quantity("6Gi")}), MemoryQoS=True)
    for resized, expected in ((GUARANTEED, "max"), (BURSTABLE, str(int(3.8 * GI) // 4096 * 4096))):
        update = resource_update(pod(resized), resized, node, "memory")
        assert update.unified["memory.high"] == expected
    assert "memory.high" not in resource_update(pod(GUARANTEED), GUARANTEED, V2, "memory").unified


def test_a_sandbox_has_the_sums_without_the_overhead() -> None:
    owner = pod(
        container("cpu=100m", "cpu=200m memory=64Mi"),
        container("cpu=100m", name="d"),
        overhead={"cpu": Quantity("1"), "memory": Quantity("1Gi")},
    )
    sums, overhead = sandbox_resources(owner, V1), sandbox_overhead(owner, V1)
    assert (sums.cpu_shares, sums.cpu_quota) == (204, 20000)
    assert sums.memory_limit_in_bytes == 64 << 20
    assert (overhead.cpu_shares, overhead.cpu_quota) == (1024, 100_000)
    assert overhead.memory_limit_in_bytes == GI


def test_an_overhead_of_nothing_is_there_but_empty() -> None:
    overhead = sandbox_overhead(pod(NOT_SET), V2)
    assert bytes(overhead) == b""
    assert is_present(overhead)
    assert bytes(cri.LinuxPodSandboxConfig(overhead=overhead)) != b""


def test_limits_of_the_pod_hold_for_containers_without_their_own() -> None:
    own, open_ended = container("", "cpu=250m memory=1Gi"), container(name="d")
    whole = container("", "cpu=1 memory=4Gi").resources
    owner = pod(own, open_ended, resources=whole)
    made = [container_resources(owner, each, V1) for each in (own, open_ended)]
    assert [(each.cpu_quota, each.memory_limit_in_bytes) for each in made] == [
        (25_000, GI),
        (100_000, 4 * GI),
    ]


@pytest.mark.parametrize(
    ("exclusive", "gate", "quota", "period"),
    [(True, True, 0, 0), (True, False, 100_000, 100_000), (False, True, 100_000, 100_000)],
)
def test_no_quota_holds_up_a_container_on_cpus_of_its_own(
    exclusive: bool, gate: bool, quota: int, period: int
) -> None:
    node = gated(V1, DisableCPUQuotaWithExclusiveCPUs=gate)
    given = ContainerPlacement(cpuset_cpus="2-3", has_exclusive_cpus=exclusive)
    made = container_resources(pod(GUARANTEED), GUARANTEED, node, given)
    assert (made.cpu_quota, made.cpu_period) == (quota, period)
    assert made.cpuset_cpus == "2-3"
    assert made.cpu_shares == 1024
