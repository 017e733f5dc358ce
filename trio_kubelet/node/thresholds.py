"""How much of something a node must have available, and what was measured of it. Pure.

A threshold is a line of evictionHard or evictionSoft: a signal and an amount, or a share of the
capacity. Conditions and admission follow from it now; evictions build on the same values.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from attrs import field, frozen

from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.k8s import NodeConditionType, Quantity
from trio_kubelet.node.allocatable import is_threshold, threshold_amount

_PODS = "pods"


class Signal(StrEnum):
    """What is measured (API: the keys of evictionHard)."""

    MEMORY = "memory.available"
    ALLOCATABLE_MEMORY = "allocatableMemory.available"
    NODE_DISK = "nodefs.available"
    NODE_INODES = "nodefs.inodesFree"
    IMAGE_DISK = "imagefs.available"
    IMAGE_INODES = "imagefs.inodesFree"
    PIDS = "pid.available"


CONDITION_OF: Mapping[Signal, NodeConditionType] = {
    Signal.MEMORY: NodeConditionType.MEMORY_PRESSURE,
    Signal.ALLOCATABLE_MEMORY: NodeConditionType.MEMORY_PRESSURE,
    Signal.NODE_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.NODE_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.IMAGE_DISK: NodeConditionType.DISK_PRESSURE,
    Signal.IMAGE_INODES: NodeConditionType.DISK_PRESSURE,
    Signal.PIDS: NodeConditionType.PID_PRESSURE,
}


@frozen(kw_only=True)
class Threshold:
    """What must be available of a signal: `100Mi`, `5%`.

    `minimum_reclaim` (evictionMinimumReclaim) must be available on top of it before a threshold
    that was crossed counts as kept.
    """

    signal: Signal
    value: str
    minimum_reclaim: str = ""


@frozen(kw_only=True)
class Measured:
    """What there is of a signal, in bytes, inodes or process ids."""

    available: int
    capacity: int


@frozen(kw_only=True)
class Observations:
    """What was measured at one time; `at` is trio's clock. What could not be is not in it."""

    at: float
    signals: Mapping[Signal, Measured] = field(factory=dict)


def configured_thresholds(configuration: KubeletConfiguration) -> tuple[Threshold, ...]:
    """The thresholds of a configuration that validation has passed, hard ones first.

    Where all pods together are held to a limit (enforceNodeAllocatable), the hard threshold for
    the node's memory holds for theirs as well. `0%` and `100%` turn a threshold off. Signals
    that nothing measures have none: `containerfs` is one of the other file systems here.
    """
    reclaim = configuration.eviction_minimum_reclaim
    hard = tuple(_thresholds(configuration.eviction_hard, reclaim))
    soft = _thresholds(configuration.eviction_soft, reclaim)
    if _PODS not in configuration.enforce_node_allocatable:
        return (*hard, *soft)
    of_pods = (
        Threshold(
            signal=Signal.ALLOCATABLE_MEMORY,
            value=threshold.value,
            minimum_reclaim=threshold.minimum_reclaim,
        )
        for threshold in hard
        if threshold.signal is Signal.MEMORY
    )
    return (*hard, *soft, *of_pods)


def is_crossed(threshold: Threshold, measured: Measured, *, was_crossed: bool) -> bool:
    """Whether too little is available; after a crossing the minimum reclaim counts as well."""
    wanted = _amount(threshold.value, measured)
    if was_crossed and threshold.minimum_reclaim:
        wanted += _amount(threshold.minimum_reclaim, measured)
    return measured.available < wanted


def _thresholds(values: Mapping[str, str], reclaim: Mapping[str, str]) -> Iterator[Threshold]:
    for name, value in sorted(values.items()):
        if name in list(Signal) and is_threshold(value):
            yield Threshold(signal=Signal(name), value=value, minimum_reclaim=reclaim.get(name, ""))


def _amount(text: str, measured: Measured) -> int:
    return threshold_amount(text, Quantity(measured.capacity)).value
