"""The groups in which pods end when the machine goes down, and how long each has."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.parts import ShutdownGracePeriodByPodPriority
from trio_kubelet.k8s import ObjectMeta, Pod, PodSpec
from trio_kubelet.node.shutdown import (
    GracePeriod,
    grace_periods,
    periods_within,
    priority_groups,
)

CRITICAL = 2_000_000_000
PERIODS = (GracePeriod(0, 20), GracePeriod(1000, 10), GracePeriod(CRITICAL, 5))


def a_pod(name: str, priority: int | None) -> Pod:
    return Pod(metadata=ObjectMeta(uid=f"uid-{name}"), spec=PodSpec(priority=priority))


@pytest.mark.parametrize(
    ("granted_seconds", "expected"),
    [(float("inf"), (20, 10, 5)), (37, (20, 10, 5)), (9, (4, 2, 1)), (2, (4 / 7, 2 / 7, 1 / 7))],
)
def test_periods_are_shorter_by_the_same_share(
    granted_seconds: float, expected: tuple[float, ...]
) -> None:
    found = [each.seconds for each in periods_within(PERIODS, granted_seconds)]
    assert found == pytest.approx(expected)


def test_periods_come_from_either_setting() -> None:
    assert grace_periods(KubeletConfiguration()) == ()
    two = KubeletConfiguration(
        shutdown_grace_period=timedelta(seconds=30),
        shutdown_grace_period_critical_pods=timedelta(seconds=10),
    )
    assert grace_periods(two) == (GracePeriod(0, 20), GracePeriod(CRITICAL, 10))
    listed = KubeletConfiguration(
        shutdown_grace_period_by_pod_priority=tuple(
            ShutdownGracePeriodByPodPriority(priority=p, shutdown_grace_period_seconds=s)
            for p, s in ((100, 7), (-5, 9))
        )
    )
    assert grace_periods(listed) == (GracePeriod(-5, 9), GracePeriod(100, 7))


@given(
    priorities=st.lists(st.sampled_from([None, -10, 0, 999, 1000, 1001, CRITICAL, CRITICAL + 1]))
)
def test_each_pod_is_in_the_highest_group_that_it_reaches(priorities: list[int | None]) -> None:
    pods = [a_pod(str(number), priority) for number, priority in enumerate(priorities)]
    groups = priority_groups(PERIODS, pods)
    assert sorted(p.metadata.uid for g in groups for p in g.pods) == sorted(
        p.metadata.uid for p in pods
    )
    seconds = [group.seconds for group in groups]
    assert seconds == [each for each in (20, 10, 5) if each in seconds]
    for group in groups:
        for pod in group.pods:
            reached = [p for p in PERIODS if p.priority <= (pod.spec.priority or 0)]
            assert group.seconds == (reached or PERIODS)[-1 if reached else 0].seconds
