"""When the node is observed again: one line a case."""

import pytest

from trio_kubelet.config.eviction import Resource, Signal, ThresholdValue
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.rhythm import FASTEST_PER_SECOND, seconds_to_next_look
from trio_kubelet.eviction.thresholds import Threshold

GI = 1 << 30


@pytest.mark.parametrize(
    ("available", "seconds"),
    [
        ({}, 10),
        ({Signal.MEMORY: 32 * GI}, 10),
        ({Signal.MEMORY: 5 * GI}, 4),
        ({Signal.MEMORY: GI + 1}, 0.5),
        ({Signal.MEMORY: GI}, 0.5),
        ({Signal.MEMORY: GI - 1}, 10),
        ({Signal.MEMORY: 32 * GI, Signal.NODE_DISK: 4 * GI}, 3),
        ({Signal.PIDS: GI + 20_000}, 2),
        ({Signal.NODE_INODES: GI + 50_000}, 1),
        ({Signal.IMAGE_DISK: GI}, 10),
    ],
)
def test_the_next_look_comes_before_a_threshold_can_be_crossed(
    available: dict[Signal, int], seconds: float
) -> None:
    thresholds = [
        Threshold(signal=signal, value=ThresholdValue.parse("1Gi"))
        for signal in (Signal.MEMORY, Signal.NODE_DISK, Signal.NODE_INODES, Signal.PIDS)
    ]
    amounts = {
        signal: Observed(available=amount, capacity=64 * GI) for signal, amount in available.items()
    }
    found = seconds_to_next_look(thresholds, Observations(at=0, signals=amounts))
    assert found == pytest.approx(seconds, abs=1e-3)


def test_every_resource_has_its_rate() -> None:
    assert set(FASTEST_PER_SECOND) == set(Resource)
