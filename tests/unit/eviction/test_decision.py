"""The step that is taken, by what was observed and what was done before: one line a case."""

from typing import Any

import pytest
from attrs import evolve

from tests.unit.eviction.candidates import MI, pod, running, stats, using, writing
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.decision import (
    NOTHING,
    EvictionStep,
    GracePolicy,
    Progress,
    Reclaim,
    decide,
    over_own_limits,
)
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import Assessment, assess
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.thresholds import DiskLayout, Threshold
from trio_kubelet.k8s import Pod

SHARED, APART, SPLIT = DiskLayout.SHARED, DiskLayout.IMAGES_APART, DiskLayout.SPLIT
CAPACITY = 1000 * MI
HARD = tuple(
    Threshold(signal=signal, value=ThresholdValue.parse("12.5%"))
    for signal in Signal
    if not signal.startswith("containerfs")
)
PODS = (using("memory", 9), writing("disk", 9), running("tasks", 9))
NO_GRACE = GracePolicy()
NEVER = Progress()


def seen(
    *short: Signal,
    layout: DiskLayout = SHARED,
    thresholds: tuple[Threshold, ...] = HARD,
    at: float = 100,
    before: Assessment | None = None,
) -> Assessment:
    """What is known after an observation of too little of some signals, and enough of others."""
    amounts = {
        signal: Observed(available=(50 if signal in short else 500) * MI, capacity=CAPACITY)
        for signal in Signal
    }
    observed = Observations(at=at, signals=amounts, layout=layout)
    return assess(before or Assessment(), thresholds, observed, 0)


def step(decision: EvictionStep) -> str:
    """A decision in a few words."""
    if decision.victim is not None:
        return f"evict {decision.victim.pod.metadata.name}"
    if decision.hasten:
        return "hasten"
    if decision.reclaim:
        return "reclaim " + ", ".join(decision.reclaim)
    if decision.needs is not None:
        return "measure pods"
    return "nothing" if decision.starved is None else "nobody"


BOTH = "reclaim dead containers, unused images"
CONTAINERS, IMAGES = "reclaim dead containers", "reclaim unused images"


@pytest.mark.parametrize(
    ("short", "layout", "first"),
    [
        ([], SHARED, "nothing"),
        ([Signal.MEMORY], SHARED, "measure pods"),
        ([Signal.ALLOCATABLE_MEMORY], SHARED, "measure pods"),
        ([Signal.PIDS], SHARED, "measure pods"),
        ([Signal.NODE_DISK], SHARED, BOTH),
        ([Signal.NODE_INODES], SHARED, BOTH),
        ([Signal.IMAGE_DISK], SHARED, BOTH),
        ([Signal.IMAGE_INODES], SHARED, BOTH),
        ([Signal.CONTAINER_DISK], SHARED, BOTH),
        ([Signal.CONTAINER_INODES], SHARED, BOTH),
        ([Signal.NODE_DISK], APART, "measure pods"),
        ([Signal.NODE_INODES], APART, "measure pods"),
        ([Signal.IMAGE_DISK], APART, BOTH),
        ([Signal.IMAGE_INODES], APART, BOTH),
        ([Signal.CONTAINER_DISK], APART, BOTH),
        ([Signal.CONTAINER_INODES], APART, BOTH),
        ([Signal.NODE_DISK], SPLIT, CONTAINERS),
        ([Signal.NODE_INODES], SPLIT, CONTAINERS),
        ([Signal.IMAGE_DISK], SPLIT, IMAGES),
        ([Signal.IMAGE_INODES], SPLIT, IMAGES),
        ([Signal.CONTAINER_DISK], SPLIT, CONTAINERS),
        ([Signal.CONTAINER_INODES], SPLIT, CONTAINERS),
        ([Signal.NODE_DISK, Signal.MEMORY], SHARED, "measure pods"),
        ([Signal.NODE_DISK, Signal.ALLOCATABLE_MEMORY], SHARED, "measure pods"),
        ([Signal.NODE_DISK, Signal.IMAGE_INODES, Signal.PIDS], SHARED, "measure pods"),
    ],
)
def test_what_nobody_needs_goes_first(short: list[Signal], layout: DiskLayout, first: str) -> None:
    assert step(decide(seen(*short, layout=layout), NEVER, NO_GRACE)) == first


@pytest.mark.parametrize(
    ("short", "victim"),
    [
        (Signal.MEMORY, "memory"),
        (Signal.ALLOCATABLE_MEMORY, "memory"),
        (Signal.PIDS, "tasks"),
        (Signal.NODE_DISK, "disk"),
        (Signal.NODE_INODES, "disk"),
        (Signal.CONTAINER_DISK, "disk"),
        (Signal.CONTAINER_INODES, "disk"),
    ],
)
def test_then_one_pod_goes_by_the_signal_that_is_short(short: Signal, victim: str) -> None:
    progress = Progress(reclaimed=short, settled_at=50)
    found = decide(seen(short), progress, NO_GRACE, PODS)
    assert step(found) == f"evict {victim}"
    assert found.victim is not None
    assert found.victim.cause == str(short)


@pytest.mark.parametrize(
    ("short", "first"),
    [
        ([Signal.NODE_DISK, Signal.PIDS], Signal.PIDS),
        ([Signal.PIDS, Signal.MEMORY], Signal.MEMORY),
        ([Signal.IMAGE_INODES, Signal.PIDS, Signal.ALLOCATABLE_MEMORY], Signal.ALLOCATABLE_MEMORY),
        ([Signal.IMAGE_DISK, Signal.NODE_DISK], Signal.NODE_DISK),
    ],
)
def test_of_several_signals_memory_comes_first_then_process_ids(
    short: list[Signal], first: Signal
) -> None:
    order = sorted(HARD, key=lambda each: str(each.signal), reverse=True)
    starved = decide(seen(*short, thresholds=tuple(order)), NEVER, NO_GRACE).starved
    assert starved is not None
    assert starved.threshold.signal is first


ENDING = NEVER.while_ending()
SLOW = NEVER.while_ending(has_time=True)
RECLAIMING = NEVER.while_reclaiming()
RECLAIMED = NEVER.after_reclaim(Signal.NODE_DISK, 9)
OWN_LIMITS = NEVER.while_ending_for_own_limits()


@pytest.mark.parametrize(
    ("short", "progress", "expected"),
    [
        (Signal.MEMORY, NEVER, "evict memory"),
        (Signal.MEMORY, Progress(settled_at=100), "evict memory"),
        (Signal.MEMORY, Progress(settled_at=100.1), "nothing"),
        (Signal.MEMORY, ENDING, "nothing"),
        (Signal.MEMORY, ENDING.after_stop(99), "evict memory"),
        (Signal.MEMORY, ENDING.after_stop(101), "nothing"),
        (Signal.PIDS, ENDING.after_end(99), "nothing"),
        (Signal.NODE_DISK, ENDING.after_stop(99), "nothing"),
        (Signal.NODE_DISK, ENDING.after_stop(90).after_end(99), BOTH),
        (Signal.NODE_DISK, ENDING.after_stop(90).after_end(101), "nothing"),
        (Signal.MEMORY, ENDING.while_ending().after_stop(99), "nothing"),
        (Signal.NODE_DISK, ENDING.while_ending().after_end(99), "nothing"),
        (Signal.MEMORY, SLOW, "hasten"),
        (Signal.NODE_DISK, SLOW, "hasten"),
        (Signal.MEMORY, SLOW.hastened(), "nothing"),
        (Signal.MEMORY, SLOW.after_stop(99), "evict memory"),
        (Signal.MEMORY, SLOW.while_ending().after_stop(99), "hasten"),
        (Signal.MEMORY, RECLAIMING, "evict memory"),
        (Signal.PIDS, RECLAIMING, "evict tasks"),
        (Signal.NODE_DISK, RECLAIMING, "nothing"),
        (Signal.NODE_DISK, RECLAIMING.after_reclaim(Signal.NODE_DISK, 99), "evict disk"),
        (Signal.NODE_DISK, RECLAIMING.after_reclaim(Signal.NODE_DISK, 101), "nothing"),
        (Signal.NODE_DISK, RECLAIMING.after_reclaim(Signal.IMAGE_DISK, 99), BOTH),
        (
            Signal.NODE_DISK,
            Progress(reclaimed=Signal.NODE_DISK).without_victim(Signal.NODE_DISK, 99),
            BOTH,
        ),
        (Signal.MEMORY, NEVER.without_victim(Signal.MEMORY, 100.1), "nothing"),
        (Signal.NODE_DISK, RECLAIMED.while_ending().after_end(9), BOTH),
        (Signal.NODE_DISK, ENDING.after_reclaim(Signal.NODE_DISK, 99), "nothing"),
        (Signal.MEMORY, RECLAIMING.while_ending().after_stop(99), "evict memory"),
        (Signal.NODE_DISK, RECLAIMING.while_ending().after_end(99), "nothing"),
        (Signal.MEMORY, OWN_LIMITS, "evict memory"),
        (Signal.PIDS, OWN_LIMITS, "evict tasks"),
        (Signal.NODE_DISK, OWN_LIMITS, "nothing"),
        (Signal.IMAGE_INODES, OWN_LIMITS, "nothing"),
        (Signal.NODE_DISK, OWN_LIMITS.after_ends_for_own_limits(100), BOTH),
        (Signal.NODE_DISK, OWN_LIMITS.after_ends_for_own_limits(101), "nothing"),
        (Signal.NODE_DISK, OWN_LIMITS.while_ending().after_end(99), "nothing"),
        (Signal.NODE_DISK, OWN_LIMITS.after_reclaim(Signal.NODE_DISK, 99), "nothing"),
        (Signal.MEMORY, ENDING.after_ends_for_own_limits(99), "nothing"),
    ],
)
def test_nothing_is_done_before_the_last_step_shows(
    short: Signal, progress: Progress, expected: str
) -> None:
    assert step(decide(seen(short), progress, NO_GRACE, PODS)) == expected


def soft(grace: float) -> Threshold:
    return Threshold(
        signal=Signal.MEMORY,
        value=ThresholdValue.parse("20%"),
        is_hard=False,
        grace_seconds=grace,
    )


@pytest.mark.parametrize(
    ("grace", "at", "expected"),
    [
        (0, 100, "evict memory"),
        (60, 100, "nothing"),
        (60, 159, "nothing"),
        (60, 160, "evict memory"),
    ],
)
def test_a_soft_threshold_waits_for_its_grace_period(
    grace: float, at: float, expected: str
) -> None:
    thresholds = (soft(grace),)
    first = seen(Signal.MEMORY, thresholds=thresholds)
    now = seen(Signal.MEMORY, thresholds=thresholds, at=at, before=first)
    assert step(decide(now, NEVER, NO_GRACE, PODS)) == expected


@pytest.mark.parametrize(
    ("most", "own", "expected"),
    [
        (0, 30, 0),
        (60, 30, 30),
        (20, 30, 20),
        (20, None, 20),
        (60, 0, 0),
        (-1, 30, 30),
        (-1, None, 1),
    ],
)
def test_the_grace_of_a_soft_eviction_is_the_smaller_one(
    most: int, own: int | None, expected: int
) -> None:
    policy = GracePolicy(most_seconds=most)
    spec: dict[str, Any] = {} if own is None else {"terminationGracePeriodSeconds": own}
    victim: Pod = pod("p", **spec)
    assert policy.seconds_of(victim, soft(1)) == expected
    assert policy.seconds_of(victim, HARD[0]) == 1


def test_of_a_hard_and_a_soft_threshold_for_one_signal_the_hard_one_counts() -> None:
    hard = Threshold(signal=Signal.MEMORY, value=ThresholdValue.parse("10%"))
    assessment = seen(Signal.MEMORY, thresholds=(hard, soft(0)))
    found = decide(assessment, NEVER, GracePolicy(most_seconds=60), PODS)
    assert found.victim is not None
    assert found.victim.grace_seconds == 1


def test_where_nobody_may_go_nobody_goes() -> None:
    critical = Candidate(pod=pod("p", priority=2_000_000_000), stats=stats("p", memory_mi=9))
    assert step(decide(seen(Signal.MEMORY), NEVER, NO_GRACE, [critical])) == "nobody"
    assert step(decide(seen(Signal.MEMORY), NEVER, NO_GRACE, [])) == "nobody"


def test_a_threshold_that_is_crossed_no_more_but_by_its_minimum_reclaim_counts() -> None:
    threshold = evolve(HARD[0], minimum_reclaim=ThresholdValue.parse("80%"))
    before = seen(Signal.MEMORY, thresholds=(threshold,))
    now = seen(thresholds=(threshold,), at=110, before=before)
    assert step(decide(now, NEVER, NO_GRACE, PODS)) == "evict memory"
    assert decide(seen(thresholds=(threshold,)), NEVER, NO_GRACE, PODS) is NOTHING


def test_the_victim_has_all_words() -> None:
    victim = decide(seen(Signal.MEMORY), NEVER, NO_GRACE, [using("p", 9, "1Mi")]).victim
    assert victim is not None
    assert (
        victim.message
        == victim.disruption
        == (
            "The node was low on resource: memory. Threshold quantity: 125Mi, available: 50Mi. "
            "Container c was using 9Mi, request is 1Mi, has larger consumption of memory. "
        )
    )
    assert victim.annotations == {
        "starved_resource": "memory",
        "offending_containers": "c",
        "offending_containers_usage": "9Mi",
    }


def test_all_that_break_their_own_limits_go_at_once_but_critical_ones() -> None:
    broken = [
        Candidate(pod=pod(name, limits={"ephemeral-storage": "1Mi"}, priority=priority), stats=used)
        for name, priority in (("a", 0), ("b", 5), ("critical", 2_000_000_000))
        for used in (writing(name, 2).stats,)
    ]
    found = over_own_limits([*broken, writing("none", 99)], SHARED)
    assert [each.pod.metadata.name for each in found] == ["a", "b"]
    assert {(each.cause, each.grace_seconds, each.disruption) for each in found} == {
        ("ephemeralpodfs.limit", 1, "")
    }


def test_every_kind_of_thing_is_reclaimed_somewhere() -> None:
    found = {
        thing
        for layout in DiskLayout
        for signal in Signal
        for thing in decide(seen(signal, layout=layout), NEVER, NO_GRACE).reclaim
    }
    assert found == set(Reclaim)
