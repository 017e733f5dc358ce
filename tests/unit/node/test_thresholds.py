"""Thresholds: what a configuration asks for, and when one is crossed."""

from typing import Any

import pytest

from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.config.validation_eviction import IGNORED_SIGNALS, SIGNALS
from trio_kubelet.node.thresholds import (
    Measured,
    Signal,
    Threshold,
    configured_thresholds,
    is_crossed,
)

GI = 1 << 30


def configured(**fields: Any) -> list[tuple[str, str, str]]:
    found = configured_thresholds(KubeletConfiguration(**fields))
    return [(str(each.signal), each.value, each.minimum_reclaim) for each in found]


def test_without_a_word_about_it_the_defaults_hold() -> None:
    assert configured() == [
        ("imagefs.available", "15%", ""),
        ("imagefs.inodesFree", "5%", ""),
        ("memory.available", "100Mi", ""),
        ("nodefs.available", "10%", ""),
        ("nodefs.inodesFree", "5%", ""),
        ("allocatableMemory.available", "100Mi", ""),
    ]


def test_hard_and_soft_thresholds_count_with_what_must_be_reclaimed() -> None:
    assert configured(
        eviction_hard={"memory.available": "1Gi", "pid.available": "10%"},
        eviction_soft={"memory.available": "2Gi"},
        eviction_minimum_reclaim={"memory.available": "500Mi", "nodefs.available": "1Gi"},
        enforce_node_allocatable=(),
    ) == [
        ("memory.available", "1Gi", "500Mi"),
        ("pid.available", "10%", ""),
        ("memory.available", "2Gi", "500Mi"),
    ]


@pytest.mark.parametrize("value", ["0%", "100%"])
def test_a_threshold_can_be_turned_off(value: str) -> None:
    assert configured(eviction_hard={"memory.available": value}) == []


def test_every_signal_that_is_accepted_is_measured_or_said_to_have_no_effect() -> None:
    assert {*Signal, *IGNORED_SIGNALS} == SIGNALS


def test_signals_that_nobody_measures_have_no_threshold() -> None:
    assert configured(eviction_hard={"containerfs.available": "10%"}) == []


def threshold(value: str, reclaim: str = "") -> Threshold:
    return Threshold(signal=Signal.MEMORY, value=value, minimum_reclaim=reclaim)


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
    measured = Measured(available=available, capacity=capacity)
    assert is_crossed(threshold(value), measured, was_crossed=False) is crossed


@pytest.mark.parametrize(
    ("reclaim", "available", "was_crossed", "crossed"),
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
    reclaim: str, available: int, was_crossed: bool, crossed: bool
) -> None:
    measured = Measured(available=available, capacity=8 * GI)
    assert is_crossed(threshold("1Gi", reclaim), measured, was_crossed=was_crossed) is crossed
