"""Thresholds: what a configuration asks for."""

from typing import Any

import pytest

from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.node.thresholds import Threshold, configured_thresholds


def configured(**fields: Any) -> list[tuple[str, str, str]]:
    found = configured_thresholds(KubeletConfiguration(**fields))
    return [(str(each.signal), each.value.text, reclaim(each)) for each in found]


def reclaim(threshold: Threshold) -> str:
    return threshold.minimum_reclaim.text if threshold.minimum_reclaim else ""


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


def test_signals_that_nobody_measures_have_no_threshold() -> None:
    assert configured(eviction_hard={"containerfs.available": "10%"}) == []
