"""The signals and values of eviction thresholds, and the rules for the fields `eviction*`. Pure.

`SIGNALS` has what is to be known of each signal; who observes, assesses and ranks reads it there.
A value is an amount, or a share of the capacity; it is parsed here alone.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum

from attrs import frozen

from trio_kubelet.config.codec import parse_duration
from trio_kubelet.config.model import KubeletConfiguration
from trio_kubelet.k8s.node import NodeConditionType
from trio_kubelet.k8s.quantity import Quantity


class Signal(StrEnum):
    """Measures of what is available (API: the keys of evictionHard)."""

    MEMORY = "memory.available"
    ALLOCATABLE_MEMORY = "allocatableMemory.available"
    NODE_DISK = "nodefs.available"
    NODE_INODES = "nodefs.inodesFree"
    IMAGE_DISK = "imagefs.available"
    IMAGE_INODES = "imagefs.inodesFree"
    CONTAINER_DISK = "containerfs.available"
    CONTAINER_INODES = "containerfs.inodesFree"
    PIDS = "pid.available"


class Resource(StrEnum):
    """The resources that run short, as events and messages name them."""

    MEMORY = "memory"
    STORAGE = "ephemeral-storage"
    INODES = "inodes"
    PIDS = "pids"

    @property
    def in_bytes(self) -> bool:
        """True for amounts of bytes; the others are numbers."""
        return self in (Resource.MEMORY, Resource.STORAGE)


class Disk(StrEnum):
    """The file systems of a node, by what is on them. Two or all three may be one."""

    NODE = "nodefs"
    """The root folder of the agent: volumes and logs of pods."""
    IMAGES = "imagefs"
    CONTAINERS = "containerfs"
    """Writable layers of containers."""


@frozen
class SignalRow:
    """The facts about one signal."""

    condition: NodeConditionType
    """The condition of a node that is short of it."""
    resource: Resource
    disk: Disk | None = None
    """The file system that it measures."""
    is_everywhere: bool = False
    """True if every node has it; others may have no limit for pods, images elsewhere, no inodes."""
    priority_first: bool = False
    """True if pods are ranked by their priority, before those that exceed their request."""


C, R = NodeConditionType, Resource

# fmt: off
SIGNALS: Mapping[Signal, SignalRow] = {
    Signal.MEMORY:             SignalRow(C.MEMORY_PRESSURE, R.MEMORY, is_everywhere=True),
    Signal.ALLOCATABLE_MEMORY: SignalRow(C.MEMORY_PRESSURE, R.MEMORY),
    Signal.NODE_DISK:          SignalRow(C.DISK_PRESSURE, R.STORAGE, Disk.NODE, is_everywhere=True),
    Signal.NODE_INODES:        SignalRow(C.DISK_PRESSURE, R.INODES, Disk.NODE),
    Signal.IMAGE_DISK:         SignalRow(C.DISK_PRESSURE, R.STORAGE, Disk.IMAGES),
    Signal.IMAGE_INODES:       SignalRow(C.DISK_PRESSURE, R.INODES, Disk.IMAGES),
    Signal.CONTAINER_DISK:     SignalRow(C.DISK_PRESSURE, R.STORAGE, Disk.CONTAINERS),
    Signal.CONTAINER_INODES:   SignalRow(C.DISK_PRESSURE, R.INODES, Disk.CONTAINERS),
    Signal.PIDS:               SignalRow(C.PID_PRESSURE, R.PIDS, is_everywhere=True,
                                         priority_first=True),
}
# fmt: on


def disk_signal(disk: Disk, resource: Resource) -> Signal:
    """The signal for the bytes or the inodes of a file system."""
    return next(
        signal for signal, row in SIGNALS.items() if (row.disk, row.resource) == (disk, resource)
    )


IGNORED_SIGNALS = tuple(signal for signal, row in SIGNALS.items() if row.disk is Disk.CONTAINERS)
"""Signals whose thresholds are accepted and have no effect, in the Go kubelet neither: those of the
file system of containers are those of the node's or of the images'."""

_WHOLE_PERCENT = 100
_LARGEST_SINGLE = 3.4e38


@frozen
class ThresholdValue:
    """An amount in bytes, inodes or process ids (`100Mi`), or a share of the capacity (`5%`)."""

    text: str
    amount: Quantity | None = None
    percentage: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "ThresholdValue":
        """Read a value of the configuration. Raises ValueError for what is neither."""
        if not text.endswith("%"):
            return cls(text, Quantity(text))
        if re.fullmatch(r"\d+(\.\d*)?", text[:-1], re.ASCII) is None:
            raise ValueError(f"{text} is no percentage")
        number = float(text[:-1])
        if number > _LARGEST_SINGLE:
            raise ValueError(f"{text} is too large")
        return cls(text, percentage=number)

    def of(self, capacity: Quantity) -> Quantity:
        """The amount, where there is so much in all.

        The Go kubelet keeps percentages as 32-bit floats: at the size of a disk that moves the
        result by some thousand bytes, and allocatable of the same node must come out the same.
        """
        if self.amount is not None:
            return self.amount
        share = _single(_single(self.percentage) / _WHOLE_PERCENT)
        return Quantity.from_bytes(int(float(capacity.value) * share))


def _single(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


def validate_eviction(configuration: KubeletConfiguration) -> Iterator[str]:
    """The problems of the fields `eviction*`, one line each."""
    hard = "evictionHard (--eviction-hard)"
    soft = "evictionSoft (--eviction-soft)"
    grace = "evictionSoftGracePeriod (--eviction-soft-grace-period)"
    reclaim = "evictionMinimumReclaim (--eviction-minimum-reclaim)"
    for name, values in (
        (hard, configuration.eviction_hard),
        (soft, configuration.eviction_soft),
        (grace, configuration.eviction_soft_grace_period),
        (reclaim, configuration.eviction_minimum_reclaim),
    ):
        for signal in sorted(values.keys() - SIGNALS.keys()):
            known = ", ".join(sorted(SIGNALS))
            yield f"{name}: unsupported eviction signal {signal}, must be one of: {known}"
    for name, thresholds in (
        (hard, configuration.eviction_hard),
        (soft, configuration.eviction_soft),
    ):
        for signal, threshold in thresholds.items():
            if not _is_threshold(threshold):
                yield (
                    f'{name} {signal} "{threshold}" must be a quantity greater than 0 '
                    "or a percentage of at most 100%"
                )
    for signal, amount in configuration.eviction_minimum_reclaim.items():
        if not _is_minimum_reclaim(amount):
            yield (
                f'{reclaim} {signal} "{amount}" must be a quantity that is not negative '
                "or a percentage greater than 0%"
            )
    for signal, period in configuration.eviction_soft_grace_period.items():
        if not _is_grace_period(period):
            yield f'{grace} {signal} "{period}" must be a duration that is not negative'
    for signal in configuration.eviction_soft:
        if signal in SIGNALS and signal not in configuration.eviction_soft_grace_period:
            yield f"grace period must be specified for the soft eviction threshold {signal}"


def _is_threshold(text: str) -> bool:
    """True if a text is a threshold, or turns one off."""
    value = _parsed(text)
    if value is None:
        return False
    if value.amount is not None:
        return value.amount > Quantity("0")
    return value.percentage <= _WHOLE_PERCENT


def _is_minimum_reclaim(text: str) -> bool:
    value = _parsed(text)
    if value is None:
        return False
    if value.amount is not None:
        return value.amount >= Quantity("0")
    return value.percentage > 0


def _parsed(text: str) -> ThresholdValue | None:
    try:
        return ThresholdValue.parse(text)
    except ValueError:
        return None


def _is_grace_period(text: str) -> bool:
    try:
        return parse_duration(text) >= timedelta()
    except ValueError:
        return False
