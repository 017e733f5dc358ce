"""Thresholds: what a configuration asks for."""

from typing import Any

import pytest

from trio_kubelet.config.eviction import SIGNALS, Signal
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.eviction.thresholds import (
    DiskLayout,
    Threshold,
    configured_thresholds,
    with_container_disk,
)


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
        eviction_soft_grace_period={"memory.available": "90s"},
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


def test_thresholds_for_the_disk_of_containers_cannot_be_set() -> None:
    assert configured(eviction_hard={"containerfs.available": "10%"}) == []


@pytest.mark.parametrize(
    ("layout", "added"),
    [
        (DiskLayout.SHARED, [("containerfs.available", "10%"), ("containerfs.inodesFree", "5%")]),
        (DiskLayout.SPLIT, [("containerfs.available", "10%"), ("containerfs.inodesFree", "5%")]),
        (
            DiskLayout.IMAGES_APART,
            [("containerfs.available", "15%"), ("containerfs.inodesFree", "6%")],
        ),
    ],
)
def test_the_disk_of_containers_has_the_thresholds_of_the_disk_that_it_is(
    layout: DiskLayout, added: list[tuple[str, str]]
) -> None:
    hard = {
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "6%",
    }
    known = configured_thresholds(KubeletConfiguration(eviction_hard=hard))
    found = with_container_disk(known, layout)
    assert found[: len(known)] == known
    assert [(str(each.signal), each.value.text) for each in found[len(known) :]] == added


def test_a_soft_threshold_has_its_grace_period() -> None:
    hard, soft = configured_thresholds(
        KubeletConfiguration(
            eviction_hard={"pid.available": "1%"},
            eviction_soft={"pid.available": "2%"},
            eviction_soft_grace_period={"pid.available": "1m30s"},
        )
    )
    assert (hard.is_hard, hard.grace_seconds) == (True, 0)
    assert (soft.is_hard, soft.grace_seconds) == (False, 90)


def test_every_signal_has_its_row() -> None:
    assert list(SIGNALS) == list(Signal)
    assert [str(row.disk) for row in SIGNALS.values() if row.disk is not None] == [
        signal.partition(".")[0] for signal in Signal if "fs." in signal
    ]
