"""From one measurement to the next: which pressures a node is under."""

import pytest
from attrs import evolve

from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import (
    Assessment,
    Pressures,
    assess,
    is_crossed,
    with_thresholds,
)
from trio_kubelet.eviction.thresholds import Threshold

GI = 1 << 30
TEN = ThresholdValue.parse("10")
THRESHOLDS = tuple(Threshold(signal=signal, value=TEN) for signal in Signal)
TRANSITION = 300.0


def threshold(value: str, reclaim: str = "") -> Threshold:
    return Threshold(
        signal=Signal.MEMORY,
        value=ThresholdValue.parse(value),
        minimum_reclaim=ThresholdValue.parse(reclaim) if reclaim else None,
    )


def assessed(
    *measured: tuple[float, dict[Signal, int]],
    thresholds: tuple[Threshold, ...] = THRESHOLDS,
    transition: float = TRANSITION,
) -> Assessment:
    """After these measurements: the time, and what was available of some signals."""
    now = Assessment()
    for at, available in measured:
        signals = {s: Observed(available=a, capacity=100) for s, a in available.items()}
        observed = Observations(at=at, signals=signals)
        now = assess(now, thresholds, observed, transition)
    return now


@pytest.mark.parametrize(
    ("signal", "pressures"),
    [
        (Signal.MEMORY, Pressures(memory=True)),
        (Signal.ALLOCATABLE_MEMORY, Pressures(memory=True)),
        (Signal.NODE_DISK, Pressures(disk=True)),
        (Signal.NODE_INODES, Pressures(disk=True)),
        (Signal.IMAGE_DISK, Pressures(disk=True)),
        (Signal.IMAGE_INODES, Pressures(disk=True)),
        (Signal.CONTAINER_DISK, Pressures(disk=True)),
        (Signal.CONTAINER_INODES, Pressures(disk=True)),
        (Signal.PIDS, Pressures(pid=True)),
    ],
)
def test_each_signal_is_a_matter_of_one_pressure(signal: Signal, pressures: Pressures) -> None:
    enough = dict.fromkeys(Signal, 50)
    assert assessed((0, enough)).pressures == Pressures()
    assert assessed((0, {**enough, signal: 9})).pressures == pressures


def test_a_node_that_was_not_measured_is_under_nothing() -> None:
    assert Assessment().pressures == Pressures()
    assert assessed((0, {})).pressures == Pressures()


def test_a_pressure_lasts_until_all_was_kept_for_the_transition_period() -> None:
    full, free = {Signal.NODE_DISK: 1}, {Signal.NODE_DISK: 50}
    measured = [(0.0, full), (10.0, full), (20.0, free)]
    assert assessed(*measured, (309.0, free)).pressures.disk
    assert not assessed(*measured, (310.0, free)).pressures.disk
    again = [*measured, (300.0, full), (310.0, free)]
    assert assessed(*again, (599.0, free)).pressures.disk
    assert not assessed(*again, (600.0, free)).pressures.disk
    assert not assessed(*measured, transition=0).pressures.disk


def test_one_of_two_full_disks_is_enough() -> None:
    first = {Signal.NODE_DISK: 1, Signal.IMAGE_DISK: 1}
    second = {Signal.NODE_DISK: 50, Signal.IMAGE_DISK: 1}
    both = {Signal.NODE_DISK: 50, Signal.IMAGE_DISK: 50}
    assert assessed((0, first), (10, second), (400, second)).pressures.disk
    assert not assessed((0, first), (10, second), (400, both), (800, both)).pressures.disk


def test_a_signal_that_cannot_be_measured_any_more_counts_as_kept() -> None:
    full: dict[Signal, int] = {Signal.IMAGE_DISK: 1}
    assert assessed((0, full), (10, {})).pressures.disk
    assert not assessed((0, full), (10, {}), (400, {})).pressures.disk


def test_the_minimum_reclaim_counts_until_it_is_there() -> None:
    memory = threshold("10", "20")
    low, some, enough = ({Signal.MEMORY: amount} for amount in (5, 20, 30))
    assert not assessed((0, some), thresholds=(memory,)).pressures.memory
    after = assessed((0, low), (10, some), thresholds=(memory,), transition=0)
    assert after.crossed_since == {memory: 0}
    assert after.pressures.memory
    done = assessed((0, low), (10, some), (20, enough), thresholds=(memory,), transition=0)
    assert not done.pressures.memory


@pytest.mark.parametrize(
    ("value", "available", "capacity", "crossed"),
    [
        ("1Gi", GI - 1, 8 * GI, True),
        ("1Gi", GI, 8 * GI, False),
        ("25%", 2 * GI - 1, 8 * GI, True),
        ("25%", 2 * GI, 8 * GI, False),
        ("10%", 0, 0, False),
        ("1", 0, 0, True),
    ],
)
def test_a_threshold_is_crossed_by_less_than_it_asks_for(
    value: str, available: int, capacity: int, crossed: bool
) -> None:
    measured = Observed(available=available, capacity=capacity)
    assert is_crossed(threshold(value), measured, was_met=False) is crossed


@pytest.mark.parametrize(
    ("reclaim", "available", "was_met", "crossed"),
    [
        ("1Gi", 3 * GI // 2, False, False),
        ("1Gi", 3 * GI // 2, True, True),
        ("1Gi", 2 * GI, True, False),
        ("25%", 2 * GI, True, True),
        ("25%", 3 * GI, True, False),
        ("", GI, True, False),
    ],
)
def test_once_crossed_the_minimum_reclaim_must_be_there_as_well(
    reclaim: str, available: int, was_met: bool, crossed: bool
) -> None:
    measured = Observed(available=available, capacity=8 * GI)
    assert is_crossed(threshold("1Gi", reclaim), measured, was_met=was_met) is crossed


def test_a_soft_threshold_that_was_not_acted_on_needs_no_minimum_reclaim() -> None:
    soft = evolve(threshold("10", "20"), is_hard=False, grace_seconds=60)
    low, some = {Signal.MEMORY: 5}, {Signal.MEMORY: 15}
    assert assessed((0, low), (30, some), thresholds=(soft,)).crossed_since == {}
    assert assessed((0, low), (60, low), (70, some), thresholds=(soft,)).crossed_since == {soft: 0}


def test_since_when_each_threshold_is_crossed_is_known() -> None:
    low, lower, enough = ({Signal.MEMORY: amount} for amount in (15, 5, 50))
    soft, hard = evolve(threshold("20"), is_hard=False, grace_seconds=20), threshold("10")
    after = assessed((0, low), (10, lower), (19, lower), thresholds=(soft, hard))
    assert after.crossed_since == {soft: 0, hard: 10}
    assert after.met == (hard,)
    assert after.pressures.memory
    later = assessed((0, low), (10, lower), (20, lower), thresholds=(soft, hard))
    assert later.met == (soft, hard)
    anew = assessed((0, low), (10, enough), (20, low), thresholds=(soft, hard))
    assert anew.crossed_since == {soft: 20}


def test_other_thresholds_leave_those_of_the_same_value_crossed_for_as_long() -> None:
    soft = Threshold(signal=Signal.MEMORY, value=TEN, is_hard=False, grace_seconds=3600)
    before = assessed((0, {Signal.MEMORY: 1}), (10, {Signal.MEMORY: 1}), thresholds=(soft,))
    assert not before.met
    sooner = evolve(soft, grace_seconds=15)
    signals = {Signal.MEMORY: Observed(available=1, capacity=100)}
    after = assess(
        with_thresholds(before, (sooner,)), (sooner,), Observations(at=15, signals=signals), 0
    )
    assert after.crossed_since == {sooner: 0}
    assert after.met == (sooner,)


def test_a_pressure_is_shown_for_its_period_when_its_threshold_has_gone() -> None:
    tests = [threshold(f"{value}") for value in range(11, 90)]
    now = assessed((0, {Signal.MEMORY: 1}), thresholds=(tests[0],))
    for at, each in enumerate(tests):
        signals = {Signal.MEMORY: Observed(available=1, capacity=100)}
        now = with_thresholds(now, (each,))
        now = assess(now, (each,), Observations(at=at, signals=signals), TRANSITION)
    assert len(now.last_crossed_at) <= 2, "however often the settings change"
    now = with_thresholds(now, ())
    assert (now.crossed_since, now.met) == ({}, ())
    now = assess(now, (), Observations(at=100, signals=signals), TRANSITION)
    assert now.pressures.memory
    now = assess(now, (), Observations(at=at + TRANSITION, signals=signals), TRANSITION)
    assert not now.pressures.memory
